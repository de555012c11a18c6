"""Bits per pixel of general and bilevel compressors on the same binary images.

Every one gets all images at once, as one tall picture or one block of bytes, which spares it a header per image.
General compressors are tried on bits and on bytes, and the smaller result counts.
"""

import bz2
import io
import lzma
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

Pixels = Any  # (n, height, width) of 0 and 1


def rates(images: Pixels) -> dict[str, float | str]:
    """Bits per pixel by compressor, or why one could not be tried."""
    found: dict[str, float | str] = {}
    for name, size in COMPRESSORS.items():
        try:
            found[name] = 8 * size(images) / images.size
        except (OSError, subprocess.SubprocessError) as error:
            found[name] = f"not here: {error}"
    found["JBIG2"] = "not here: neither Debian 12 nor the Python package index has an encoder (jbig2dec only decodes)"
    return found


def _picture(images: Pixels, mode: str, **options: Any) -> int:
    sheet = Image.fromarray(images.reshape(-1, images.shape[2]).astype(np.uint8) * 255).convert(mode)
    contents = io.BytesIO()
    sheet.save(contents, **options)
    with Image.open(io.BytesIO(contents.getvalue())) as again:
        assert np.array_equal(np.asarray(again.convert("L")) > 0, images.reshape(-1, images.shape[2]) > 0)
    return contents.tell()


def _webp(images: Pixels) -> int:
    """WebP ends at 16383 pixels to a side: images are put side by side too."""
    count, height, width = images.shape
    columns = -(-count * height // 16000)
    padded = np.zeros((-(-count // columns) * columns, height, width), images.dtype)
    padded[:count] = images
    sheet = padded.reshape(-1, columns, height, width).swapaxes(1, 2).reshape(1, -1, columns * width)
    return _picture(sheet, "RGB", format="WEBP", lossless=True, quality=100, method=6)


def _smaller(compressed: Callable[[bytes], bytes]) -> Callable[[Pixels], int]:
    def size(images: Pixels) -> int:
        forms = (np.packbits(images).tobytes(), images.astype(np.uint8).tobytes())
        return min(len(compressed(form)) for form in forms)

    return size


def _piped(data: bytes, package: str, *command: str) -> bytes:
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"there is no command {command[0]}; Debian's {package} has it")
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def _zstd(data: bytes) -> bytes:
    return _piped(data, "zstd", "zstd", "-19", "--ultra", "-c")


def _jbig(images: Pixels) -> int:
    """ITU-T T.82, the arithmetic coder for bilevel pictures before JBIG2, in one layer (jbigkit)."""
    rows = images.reshape(-1, images.shape[2])
    bits = np.packbits(rows.astype(np.uint8), axis=1).tobytes()
    coded = _piped(b"P4\n%d %d\n" % rows.shape[::-1] + bits, "jbigkit-bin", "pbmtojbg", "-q")
    assert _piped(coded, "jbigkit-bin", "jbgtopbm").endswith(bits)
    return len(coded)


COMPRESSORS: dict[str, Callable[[Pixels], int]] = {
    "PNG": lambda images: _picture(images, "1", format="PNG", optimize=True),
    "WebP lossless": _webp,
    "TIFF Group 4": lambda images: _picture(images, "1", format="TIFF", compression="group4"),
    "JBIG": _jbig,
    "zstd -19": _smaller(_zstd),
    "bzip2 -9": _smaller(lambda data: bz2.compress(data, 9)),
    "xz -9": _smaller(lambda data: lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
}
