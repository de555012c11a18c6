"""Everything that is compiled: C, its wrappers, and the one policy that says when it runs (README.md)."""
