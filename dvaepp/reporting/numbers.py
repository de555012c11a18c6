"""Numbers for people: a true minus sign, thin spaces between thousands, no more digits than mean something."""

import math
from typing import Any

THIN = "\u202f"
Number = int | float  # beartype does not take an int for a float


def count(value: Number) -> str:
    return _signed(f"{int(value):,}".replace(",", THIN))


def nats(value: Number, digits: int = 2) -> str:
    if not math.isfinite(value):
        return _signed(str(value))
    return _signed(f"{value:,.{digits}f}".replace(",", THIN))


def with_error(value: Number, error: Number) -> str:
    """Value ± standard error, both to the error's second digit and at least to hundredths."""
    digits = 2 if not (math.isfinite(error) and 0 < error < 0.1) else min(6, 1 - math.floor(math.log10(error)))
    return f"{nats(value, digits)} ± {nats(error, digits)}"


def short(value: Number) -> str:
    """A number of any size in four digits."""
    if value and not 1e-3 <= abs(value) < 1e5:
        return _signed(f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e"))
    return _signed(f"{value:.4g}")


def plural(number: int, word: str) -> str:
    return f"{count(number)} {word}{'' if number == 1 else 's'}"


def rough(value: Number) -> str:
    """A number in two digits."""
    return short(float(f"{value:.2g}"))


def steps(value: Number, position: Any = None) -> str:
    """5000 as 5k, 1200000 as 1.2M; the signature is that of a tick formatter."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _signed(text: str) -> str:
    return text.replace("-", "\u2212")
