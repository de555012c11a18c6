"""Several processes as one: `torchrun --nproc-per-node N -m dvaepp train ...` (one process is the common case).

Every process draws the noise of the whole batch and keeps the rows of its shard, so that a number depends on seed,
step and example, never on how many processes share the work. What mixes examples is summed over all of them.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dvaepp.errors import UsageError

TIMEOUT = timedelta(minutes=30)  # of one exchange; a process that dies is noticed at once, by its closed connection


class Shard(NamedTuple):
    """Rows first .. last of `total`."""

    first: int
    last: int
    total: int

    @property
    def rows(self) -> int:
        return self.last - self.first


class LostProcess(RuntimeError):
    """Another process of the job has ended."""


def rank() -> int:
    return dist.get_rank() if _joined() else 0


def size() -> int:
    return dist.get_world_size() if _joined() else 1


def shard(total: int) -> Shard:
    """This process's share of `total` rows, contiguous and as even as can be."""
    r, n = rank(), size()
    return Shard(total * r // n, total * (r + 1) // n, total)


@contextmanager
def joined(device: str = "cpu") -> Iterator[str]:
    """Join the job that torchrun started, if it did; yields this process's device."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or _joined():
        yield device
        return
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    backend = "nccl" if device.startswith("cuda") else "gloo"
    try:
        dist.init_process_group(backend, timeout=TIMEOUT)
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"WORLD_SIZE is set, but no job can be joined ({error}); start with torchrun, or unset it"
        ) from None
    try:
        yield device
    finally:
        dist.destroy_process_group()


def total(x: Tensor) -> Tensor:
    """The sum of x over all processes; gradients are summed likewise."""
    if size() == 1:
        return x
    out: Tensor = _Total.apply(x)
    return out


class _Total(torch.autograd.Function):
    """y = Σ_r x_r enters the loss of every process, so dL/dx_r sums what all of them say about y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _sum(x.clone())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _sum(grad.clone())


@torch.no_grad()
def sum_gradients(parameters: Sequence[Tensor], loss: Tensor) -> Tensor:
    """Replace every gradient by its sum over all processes, in one exchange; returns the sum of the losses."""
    if size() == 1:
        return loss
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
    flat = _sum(torch.cat([*(g.reshape(-1) for g in gradients), loss.reshape(1).to(gradients[0].dtype)]))
    for p, part in zip(parameters, flat[:-1].split([g.numel() for g in gradients]), strict=True):
        p.grad = part.view(p.shape)
    return flat[-1]


@torch.no_grad()
def gather(x: Tensor, of: Shard, dim: int = 0) -> Tensor:
    """The rows of all processes in order, given those of this one's shard: exact, as all others add zeros."""
    if size() == 1:
        return x
    shape = list(x.shape)
    shape[dim] = of.total
    whole = x.new_zeros(shape)
    whole.narrow(dim, of.first, of.rows).copy_(x)
    return _sum(whole)


def largest(*values: float | int) -> tuple[float | int, ...]:
    """Each value's maximum over the processes: what one of them has noticed, all know."""
    if size() == 1:
        return values
    shared = torch.tensor(values, dtype=torch.float64, device=_device())
    _exchange(lambda: dist.all_reduce(shared, dist.ReduceOp.MAX))
    return tuple(shared.tolist())


def from_first(value: Any) -> Any:
    """What the first process has, a JSON-able value, on all of them."""
    if size() == 1:
        return value
    import json

    text = json.dumps(value).encode() if rank() == 0 else b""
    (length,) = largest(float(len(text)))
    letters = torch.zeros(int(length), dtype=torch.uint8, device=_device())
    if rank() == 0:
        letters.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    _exchange(lambda: dist.broadcast(letters, 0))
    return json.loads(bytes(letters.cpu().tolist()))


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def _device() -> torch.device:
    return torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")


def _sum(x: Tensor) -> Tensor:
    x = x.contiguous()
    _exchange(lambda: dist.all_reduce(x))
    return x


def _exchange(collective: Any) -> None:
    try:
        collective()
    except RuntimeError as error:
        reason = str(error).splitlines()[0][:100]
        raise LostProcess(
            f"rank {rank()} lost another process of the job ({reason}); continue from the last checkpoint with --resume"
        ) from None
