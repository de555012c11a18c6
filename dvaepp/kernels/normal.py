"""Groups of normal units: the bound of their parameters, a sample, and the KL of two groups.

    θ = (μ, s) = b tanh(v / b),   h = μ + e^s ε,   KL = Σ s_p - s_q + [(e^(2 s_q) + (μ_q - μ_p)²) e^(-2 s_p) - 1] / 2

Each is a line or two of torch, whose single operations and their gradients took a tenth of a step of the paper's
convolutional models. normal.c takes maps (rows, channels, height, width) in one pass where the channels of a pixel lie
next to each other; all others take the lines of torch. The two forms differ by a few roundings.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dvaepp.kernels import policy
from dvaepp.kernels.build import call
from dvaepp.kernels.operation import Size, check_floats, check_shape, no_second_derivative, operation


def bounded(v: Tensor, bound: float) -> Tensor:
    """θ = b tanh(v / b)"""
    theta: Tensor = _bound(v, bound) if _takes(v) else _plain_bound(v, bound)
    return theta


def sample(theta: Tensor, noise: Tensor) -> Tensor:
    """h = μ + e^s ε, where θ has the channels of μ and then those of s."""
    takes = _takes(theta, noise) and not noise.requires_grad
    h: Tensor = _sample(theta, noise) if takes else _plain_sample(theta, noise)
    return h


def kl(q: Tensor, p: Tensor) -> Tensor:
    """KL(q || p) of each row, from the parameters of both."""
    value: Tensor = _kl(q, p) if q.shape == p.shape and _takes(q, p) else _plain_kl(q, p)
    return value


def _plain_bound(v: Tensor, bound: float) -> Tensor:
    return bound * torch.tanh(v / bound)


def _plain_sample(theta: Tensor, noise: Tensor) -> Tensor:
    mean, log_sd = theta.chunk(2, 1)
    return mean + log_sd.exp() * noise


def _plain_kl(q: Tensor, p: Tensor) -> Tensor:
    q_mean, q_log_sd = q.chunk(2, 1)
    p_mean, p_log_sd = p.chunk(2, 1)
    gap = torch.exp(-2 * p_log_sd) * (torch.exp(2 * q_log_sd) + (q_mean - p_mean) ** 2)
    return (p_log_sd - q_log_sd + 0.5 * (gap - 1)).flatten(1).sum(1)


def _takes(*maps: Tensor) -> bool:
    return all(x.dim() == 4 and _in_lines(x) for x in maps) and policy.takes("normal", maps)


def _in_lines(x: Tensor) -> bool:
    """Whether the channels of a pixel lie next to each other, and its pixels at equal distances."""
    _, channel, line, pixel = x.stride()
    return channel == 1 and line == x.shape[3] * pixel


def _lines(x: Tensor) -> Tensor:
    return x if _in_lines(x) else _like(x, x.shape[1]).copy_(x)


def _like(x: Tensor, channels: Size) -> Tensor:
    """Memory for maps with this number of channels, with rows and pixels in the order of x."""
    rows, _, height, width = x.shape
    if x.stride(0) >= x.stride(3):
        return x.new_empty(rows, height, width, channels).permute(0, 3, 1, 2)
    return x.new_empty(height, width, rows, channels).permute(2, 3, 0, 1)


def _check(name: str, x: Tensor, halves: bool, **others: tuple[Tensor, Size]) -> None:
    """Refuse what is not maps, and others that do not have as many rows and pixels and the given channels."""
    check_floats(name, x, *(other for other, _ in others.values()))
    if x.dim() != 4 or (halves and x.shape[1] % 2):
        even = " with an even number of channels" if halves else ""
        raise ValueError(f"{name}: expected maps (rows, channels, height, width){even}, got {tuple(x.shape)}")
    for argument, (other, channels) in others.items():
        check_shape(name, argument, other.shape, (x.shape[0], channels, *x.shape[2:]))


def _fake_bound(v: Tensor, bound: float) -> Tensor:
    _check("normal_bound", v, False)
    return _like(v, v.shape[1])


def _run_bound(v: Tensor, bound: float) -> Tensor:
    theta = _fake_bound(v, bound)
    _call("dvaepp_bound", v, v.shape[1], {"q": _lines(v), "value": theta}, bound)
    return theta


def _fake_bound_backward(dtheta: Tensor, theta: Tensor, bound: float) -> Tensor:
    _check("normal_bound_backward", theta, False, dtheta=(dtheta, theta.shape[1]))
    return _like(theta, theta.shape[1])


def _run_bound_backward(dtheta: Tensor, theta: Tensor, bound: float) -> Tensor:
    dv = _fake_bound_backward(dtheta, theta, bound)
    arrays = {"value": _lines(theta), "dvalue": _lines(dtheta), "dq": dv}
    _call("dvaepp_bound_backward", theta, theta.shape[1], arrays, bound)
    return dv


def _fake_sample(theta: Tensor, noise: Tensor) -> Tensor:
    _check("normal_sample", theta, True, noise=(noise, theta.shape[1] // 2))
    return _like(theta, theta.shape[1] // 2)


def _run_sample(theta: Tensor, noise: Tensor) -> Tensor:
    h = _fake_sample(theta, noise)
    _call("dvaepp_sample", h, h.shape[1], {"q": _lines(theta), "noise": _lines(noise), "value": h})
    return h


def _fake_sample_backward(dh: Tensor, theta: Tensor, noise: Tensor) -> Tensor:
    half = theta.shape[1] // 2
    _check("normal_sample_backward", theta, True, noise=(noise, half), dh=(dh, half))
    return _like(theta, theta.shape[1])


def _run_sample_backward(dh: Tensor, theta: Tensor, noise: Tensor) -> Tensor:
    dtheta = _fake_sample_backward(dh, theta, noise)
    arrays = {"q": _lines(theta), "noise": _lines(noise), "dvalue": _lines(dh), "dq": dtheta}
    _call("dvaepp_sample_backward", dh, dh.shape[1], arrays)
    return dtheta


def _fake_kl(q: Tensor, p: Tensor) -> Tensor:
    _check("normal_kl", q, True, p=(p, q.shape[1]))
    return q.new_empty(len(q))


def _run_kl(q: Tensor, p: Tensor) -> Tensor:
    value = _fake_kl(q, p)
    _call("dvaepp_kl", q, q.shape[1] // 2, {"q": _lines(q), "p": _lines(p), "kl": value})
    return value


def _fake_kl_backward(dkl: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    _check("normal_kl_backward", q, True, p=(p, q.shape[1]))
    check_floats("normal_kl_backward", dkl, q)
    check_shape("normal_kl_backward", "dkl", dkl.shape, q.shape[:1])
    return _like(q, q.shape[1]), _like(p, p.shape[1])


def _run_kl_backward(dkl: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    dq, dp = _fake_kl_backward(dkl, q, p)
    arrays = {"q": _lines(q), "p": _lines(p), "dkl": dkl.contiguous(), "dq": dq, "dp": dp}
    _call("dvaepp_kl_backward", q, q.shape[1] // 2, arrays)
    return dq, dp


class _NormalJob(ctypes.Structure):
    """`job` of normal.c."""

    MAPS = ("q", "p", "noise", "value", "dq", "dp", "dvalue")

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (*MAPS, "kl", "dkl")),
        ("bound", ctypes.c_float),
        *((name, ctypes.c_int64) for name in ("rows", "pixels", "channels")),
        *((f"{name}_row", ctypes.c_int64) for name in MAPS),
        *((f"{name}_pixel", ctypes.c_int64) for name in MAPS),
    ]


def _call(function: str, like: Tensor, channels: int, arrays: dict[str, Tensor], bound: float = 0.0) -> None:
    """Call a function of normal.c with these arrays, which have rows and pixels as the first one has."""
    rows, _, height, width = like.shape
    job = _NormalJob(bound=bound, rows=rows, pixels=height * width, channels=channels)
    for name, maps in arrays.items():
        if maps.dim() == 4:
            row, _, _, pixel = maps.stride()
            setattr(job, f"{name}_row", row)
            setattr(job, f"{name}_pixel", pixel)
    call(getattr(policy.functions("normal"), function), job, **arrays)


def _keep_output(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.bound = inputs[1]
    ctx.save_for_backward(output)
    ctx.set_materialize_grads(False)


def _bound_slope(ctx: Any, dtheta: Tensor | None) -> tuple[Tensor | None, None]:
    if dtheta is None:
        return None, None
    (theta,) = ctx.saved_tensors
    if torch.is_grad_enabled():  # a second derivative needs expressions of torch
        return dtheta * (1 - (theta / ctx.bound) ** 2), None
    return _bound_backward(dtheta, theta, ctx.bound), None


def _keep_inputs(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)
    ctx.set_materialize_grads(False)


def _sample_slope(ctx: Any, dh: Tensor | None) -> tuple[Tensor | None, None]:
    if dh is None:
        return None, None
    theta, noise = ctx.saved_tensors
    if torch.is_grad_enabled():
        return _expressions(_plain_sample, dh, theta, noise)[0], None
    return _sample_backward(dh, theta, noise), None


def _kl_slope(ctx: Any, dkl: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    if dkl is None:
        return None, None
    q, p = ctx.saved_tensors
    found = _expressions(_plain_kl, dkl, q, p) if torch.is_grad_enabled() else _kl_backward(dkl, q, p)
    return found[0], found[1]


def _expressions(plain: Callable[..., Tensor], slope: Tensor, *inputs: Tensor) -> list[Tensor | None]:
    """The gradient of the plain form as expressions of torch, which can be differentiated again.

    It is taken for views, because one input may depend on another one.
    """
    views = [x.view_as(x) for x in inputs]
    wanted = [x for x in views if x.requires_grad]
    found = iter(torch.autograd.grad(plain(*views), wanted, slope, create_graph=True))
    return [next(found) if x.requires_grad else None for x in views]


_bound = operation(
    "normal_bound(Tensor v, float bound) -> Tensor",
    _run_bound,
    _fake_bound,
    setup_context=_keep_output,
    backward=_bound_slope,
)
_bound_backward = operation(
    "normal_bound_backward(Tensor dtheta, Tensor theta, float bound) -> Tensor",
    _run_bound_backward,
    _fake_bound_backward,
    backward=no_second_derivative,
)
_sample = operation(
    "normal_sample(Tensor theta, Tensor noise) -> Tensor",
    _run_sample,
    _fake_sample,
    setup_context=_keep_inputs,
    backward=_sample_slope,
)
_sample_backward = operation(
    "normal_sample_backward(Tensor dh, Tensor theta, Tensor noise) -> Tensor",
    _run_sample_backward,
    _fake_sample_backward,
    backward=no_second_derivative,
)
_kl = operation(
    "normal_kl(Tensor q, Tensor p) -> Tensor",
    _run_kl,
    _fake_kl,
    setup_context=_keep_inputs,
    backward=_kl_slope,
)
_kl_backward = operation(
    "normal_kl_backward(Tensor dkl, Tensor q, Tensor p) -> (Tensor, Tensor)",
    _run_kl_backward,
    _fake_kl_backward,
    backward=no_second_derivative,
)
