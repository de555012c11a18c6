"""What binary codes are for: exact search among them, and lossless compression through them.

Start with `HammingIndex`; `dvaepp index` and `dvaepp search` use it on run directories.
"""

from dvaepp.codes.hamming import HammingIndex, Neighbours

__all__ = ["HammingIndex", "Neighbours"]
