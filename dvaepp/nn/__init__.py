"""Layers with binary units for one's own networks."""

from dvaepp.nn.quantizer import BinaryQuantizer, Quantized
from dvaepp.nn.usage import Usage, usage

__all__ = ["BinaryQuantizer", "Quantized", "Usage", "usage"]
