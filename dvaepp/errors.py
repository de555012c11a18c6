"""Failures that are the caller's to mend."""


class UsageError(ValueError):
    """The request cannot be carried out as given; the command line exits with 2."""
