"""Slow references in high precision or by other people's code. Nothing here imports dvaepp."""

import mpmath


def exponential_inverse(beta: float, logit: float, rho: float) -> tuple[float, mpmath.mpf]:
    """ζ and dζ/dlogit of Eq. 3 exactly as printed, with digits enough for e^(-β), and its analytic derivative."""
    with mpmath.workdps(60 + int(beta + 2 * abs(logit))):
        beta, logit, rho = mpmath.mpf(beta), mpmath.mpf(logit), mpmath.mpf(rho)
        q = 1 / (1 + mpmath.exp(-logit))
        d = mpmath.exp(-beta)
        b = (rho + d * (q - rho)) / (1 - q) - 1
        c = -q * d / (1 - q)
        root = mpmath.sqrt(b * b - 4 * c)
        m = (-b + root) / 2
        # chain rule on the printed formula
        db = d / (1 - q) + (rho + d * (q - rho)) / (1 - q) ** 2
        dc = -d / (1 - q) ** 2
        dm = (-db + (b * db - 2 * dc) / root) / 2
        return float(-mpmath.log(m) / beta), -dm / (m * beta) * q * (1 - q)


def logistic_inverse(scale: float, logit: float, rho: float) -> mpmath.mpf:
    """ζ of App. B as printed (locations 0 and 1), with digits enough for e^(1/s)."""
    with mpmath.workdps(60 + int(1 / scale + 2 * abs(logit))):
        s, logit, rho = mpmath.mpf(scale), mpmath.mpf(logit), mpmath.mpf(rho)
        q = 1 / (1 + mpmath.exp(-logit))
        d0, d1 = mpmath.mpf(1), mpmath.exp(1 / s)
        a = rho * d0 * d1
        b = rho * (d0 + d1) - d0 * q - d1 * (1 - q)
        c = rho - 1
        return -s * mpmath.log((-b + mpmath.sqrt(b * b - 4 * a * c)) / (2 * a))
