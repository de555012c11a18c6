"""OMNIGLOT with its training images, too, binarised once with a fixed seed (the variant of Table 1)."""

from dataclasses import replace

from dvaepp.data import omniglot
from dvaepp.data.base import Dataset
from dvaepp.data.store import Found

FILES = omniglot.FILES
SHAPE = omniglot.SHAPE
SIZES = omniglot.SIZES


def read(found: list[Found]) -> Dataset:
    dynamic = omniglot.read(found)
    name = dynamic.name.replace("omniglot", "omniglot_static")
    return replace(dynamic, name=name, train=dynamic.split("train"), dynamic=False)
