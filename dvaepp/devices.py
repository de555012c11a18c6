"""Whether torch can compute on a device here, asked before anything is read or built for it."""

import torch

from dvaepp.errors import UsageError

Device = str | torch.device


def usable(device: Device) -> str:
    """The name of a device that torch can compute on; refuses others in one line.

    >>> usable("cpu")
    'cpu'
    """
    name = str(device)
    try:
        torch.empty(0, dtype=torch.float32, device=name).cpu()  # numbers on "meta" can be made, and never be had
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"device {name!r} cannot be used here: {reason}; try cpu") from None
    return name
