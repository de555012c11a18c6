"""`python -m dvaepp`: the same as the `dvaepp` command."""

from dvaepp.cli import main

if __name__ == "__main__":
    main()
