"""All C code, the Python functions around it, and the policy that says when it runs; README.md has a table of them."""
