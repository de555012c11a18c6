"""The fused half-sweep: its generator tested as one, its thresholds against numpy."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm
from torch import Tensor

from dvaepp.kernels import gibbs as kernel_module
from dvaepp.priors import RBM, BoltzmannMachine, BoltzmannPrior
from dvaepp.samplers import gibbs
from dvaepp.samplers.blocks import BlockGibbs
from dvaepp.samplers.noise import Noise

RATE = 1e-6  # failure rate of each statistical assertion under a perfect generator


pytestmark = pytest.mark.skipif(not kernel_module.available(), reason="no C compiler here, or DVAEPP_KERNEL=off")


@contextmanager
def number_of_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _words(count: int, key: int, step: int, block: int = 0) -> np.ndarray:
    out = torch.empty(count, dtype=torch.int32)
    kernel_module._functions()["words"](out.data_ptr(), block, count // 64, key, step)
    return out.numpy().view(np.uint32)


@pytest.mark.parametrize(
    "counter, step, key, expected",
    [  # known answers published with Philox4x32-10 (Random123)
        (0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, 2**64 - 1, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (0x85A308D3243F6A88, 0x0370734413198A2E, 0x299F31D0A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_published_answers(counter: int, step: int, key: int, expected: str) -> None:
    words = _words(64, key, step, counter // 16).reshape(4, 16)[:, counter % 16]
    assert " ".join(f"{w:08x}" for w in words) == expected


@pytest.mark.parametrize("first, count", [(0, 64), (0, 1), (37, 300), (1 << 36, 130), (5 * 200, 7 * 200)])
@pytest.mark.parametrize("key, step", [(0, 1), (2**63 - 2, 5), (0x0123456789ABCDEF, 2**33 + 7)])
def test_words_in_plain_torch_are_those_of_the_kernel(first: int, count: int, key: int, step: int) -> None:
    block = first // 64
    expected = _words(64 * -(-(first - 64 * block + count) // 64), key, step, block)[first - 64 * block :][:count]
    found = kernel_module.words(first, count, torch.tensor(key), step)
    assert np.array_equal(found.numpy(), expected.astype(np.int64) & 0xFFFFFFFF)


def _one_sweep(machine: BoltzmannPrior, z: Tensor, seed: int, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Which bits differ after one sweep with and without C; each that differs must be a close decision.

    A bit that differs changes the fields of later blocks, so that a chain is asked for its first differing block alone.
    """
    compiled = gibbs(machine, z, 1, torch.Generator().manual_seed(seed))
    close: list[Tensor] = []
    original = kernel_module.threshold

    def watched(acc: Tensor, base: Tensor, delta: Tensor, scale: None, out: Tensor, *rest: Any) -> None:
        original(acc, base, delta, scale, out, *rest)
        u = (kernel_module.words(0, out.numel(), *rest[:2]).view(out.shape).double() + 0.5) / 2**32
        close.append((u - torch.sigmoid((base + acc + delta).double())).abs() < 1e-5)

    with monkeypatch.context() as patch:
        patch.setenv("DVAEPP_KERNEL", "-gibbs")
        patch.setattr(kernel_module, "threshold", watched)
        plain = gibbs(machine, z, 1, torch.Generator().manual_seed(seed))
    different = compiled != plain
    order, blocks = machine.block_form()
    by_block = different if order is None else different[:, order]
    before = torch.zeros(len(z), 1, dtype=torch.bool)
    for block, decided in zip(blocks, close, strict=True):
        here = by_block[:, block.out]
        assert not (here & ~before & ~decided).any()
        before |= here.any(1, keepdim=True)
    return different


def _random_machine(kind: str) -> tuple[BoltzmannPrior, Tensor]:
    g = torch.Generator().manual_seed(0)
    ring = torch.zeros(120, 120, dtype=torch.bool)
    ring[range(120), [(i + 1) % 120 for i in range(120)]] = True
    machine = RBM(60, 40) if kind == "rbm" else BoltzmannMachine(120, ring | ring.t())
    with torch.no_grad():
        for parameter in machine.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g) * 0.3)
    return machine, (torch.rand(21_000, machine.num_units, generator=g) < 0.5).float()


@pytest.mark.parametrize("kind", ["rbm", "machine"])
def test_a_seed_means_the_same_chains_with_and_without_a_compiler(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one sweep from the same states at most 1e-5 of 10^7 bits differ, each where |u - p| < 1e-5."""
    machine, z = _random_machine(kind)
    counts = [_one_sweep(machine, z, seed, monkeypatch).sum().item() for seed in range(5)]
    bits = 5 * z.numel()
    print(f"{kind}: {sum(counts)} of {bits} bits differ, by seed {counts}")
    assert bits > 10**7 and sum(counts) <= 1e-5 * bits


def test_the_comparison_sees_logits_that_are_off_by_a_thousandth(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, z = _random_machine("rbm")
    original = kernel_module.threshold
    off = lambda acc, base, *rest: original(acc, base + 1e-3, *rest)  # noqa: E731
    monkeypatch.setattr(kernel_module, "threshold", off)
    with pytest.raises(AssertionError):
        _one_sweep(machine, z[:2000], 0, monkeypatch)


def test_bits_are_balanced_and_words_uniform() -> None:
    words = _words(1 << 20, key=12345, step=7)
    ones = np.unpackbits(words.view(np.uint8)).reshape(-1, 32).sum(0)
    deviation = np.abs(ones - len(words) / 2) / np.sqrt(len(words) / 4)
    assert deviation.max() < norm.isf(RATE / 64)
    for shift in (24, 12, 0):  # high, middle and low bytes
        counts = np.bincount((words >> shift) & 0xFF, minlength=256)
        statistic = ((counts - len(words) / 256) ** 2 / (len(words) / 256)).sum()
        assert chi2.isf(1 - RATE, 255) < statistic < chi2.isf(RATE, 255)


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """z-score of the correlation of two uniform sequences."""
    a, b = (x.astype(np.float64) / 2**32 - 0.5 for x in (a, b))
    return float((a * b).sum() / (np.sqrt(len(a)) / 12))


def test_no_serial_or_cross_stream_correlation() -> None:
    n = 1 << 18
    words = _words(n, key=99, step=1)
    limit = norm.isf(RATE / 2)
    for lag in (1, 2, 16, 64, 200, 400):
        assert abs(_correlation(words[:-lag], words[lag:])) < limit, f"lag {lag}"
    for key, step in ((99, 2), (98, 1), (99 ^ (1 << 63), 1), (99, 1 << 32)):
        assert abs(_correlation(words, _words(n, key, step))) < limit, f"key {key}, step {step}"
    assert abs(_correlation(words, words)) > limit, "the test must see a repeated stream"


def test_steps_and_chains_share_no_stream() -> None:
    """64-bit pairs from 64 steps x 16384 elements: a repeat would have probability 1e-8."""
    streams = [_words(1 << 14, key=5, step=step) for step in range(64)]
    pairs = np.concatenate(streams).reshape(-1, 4, 16)[:, :2].astype(np.uint64)
    joined = (pairs[:, 0] << np.uint64(32) | pairs[:, 1]).ravel()
    assert len(np.unique(joined)) == len(joined)


def _threshold(
    rows: int,
    units: int,
    *,
    threads: int = 1,
    scale: bool = True,
    key: int = 3,
    step: int = 9,
    dtype: torch.dtype = torch.float32,
):
    g = torch.Generator().manual_seed(rows * units)
    acc = 3 * torch.randn(4000, units, generator=g, dtype=dtype)[:rows]
    base, delta = torch.randn(2, units, generator=g, dtype=dtype)
    scales = torch.linspace(0, 1, 4000, dtype=dtype)[:rows].contiguous() if scale else None
    out = torch.full((rows, units + 3), -1.0, dtype=dtype)  # wider than the block: a slice of all units
    with number_of_threads(threads):
        kernel_module.threshold_(acc, base, delta, scales, out[:, :units], key, step, 0)
    assert (out[:, units:] == -1).all()
    s = np.ones(rows) if scales is None else scales.numpy().astype(np.float64)
    logits = base.numpy().astype(np.float64) + s[:, None] * (acc.numpy() + delta.numpy()).astype(np.float64)
    return out[:, :units].numpy(), logits


@pytest.mark.parametrize("rows, units", [(1, 1), (3, 7), (50, 64), (37, 100), (11, 200), (3, 5000), (2, 4096)])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threshold_equals_numpy(rows: int, units: int, scale: bool, dtype: torch.dtype) -> None:
    z, logits = _threshold(rows, units, scale=scale, dtype=dtype)
    count = -(-rows * units // 64) * 64
    words = _words(count, key=3, step=9)[: rows * units].reshape(rows, units)
    u = ((words >> 1) + 0.5) / 2**31
    p = 1 / (1 + np.exp(-logits))
    decided = np.abs(u - p) > 1e-6  # closer than that float32 may round either way
    assert decided.mean() > 0.999 and np.isin(z, (0, 1)).all()
    assert np.array_equal(z[decided] == 1, (u < p)[decided])


def test_noise_depends_on_neither_threads_nor_other_chains() -> None:
    one, _ = _threshold(1000, 200, threads=1)
    two, _ = _threshold(1000, 200, threads=2)
    assert np.array_equal(one, two)
    few, many = (torch.empty(rows, 50) for rows in (10, 300))
    for out in (few, many):
        kernel_module.threshold_(torch.zeros_like(out), torch.zeros(50), torch.zeros(50), None, out, 1, 1, 0)
    assert torch.equal(few, many[:10])


def test_large_terms_cancel_before_a_double_logit_is_rounded() -> None:
    """logit = 2^30 + 1 - 2^30 = 1: in float32 the one is lost, and every second unit would be on instead of 73 %."""
    acc = torch.full((20_000, 1), 2.0**30 + 1, dtype=torch.float64)
    base, delta, out = acc.new_zeros(1), acc.new_full((1,), -(2.0**30)), torch.empty_like(acc)
    kernel_module.threshold_(acc, base, delta, None, out, 1, 1, 0)
    p = 1 / (1 + np.exp(-1))
    assert abs(out.mean().item() - p) < norm.isf(RATE / 2) * np.sqrt(p * (1 - p) / 20_000)


def test_certain_units_are_certain() -> None:
    acc = torch.tensor([[200.0, -200.0, torch.inf, -torch.inf]]).repeat(20_000, 1)
    out = torch.empty_like(acc)
    kernel_module.threshold_(acc, torch.zeros(4), torch.zeros(4), None, out, 1, 1, 0)
    assert out.mean(0).tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("left, right, chains", [(1, 1, 1), (3, 7, 5), (16, 64, 8), (33, 17, 20), (256, 200, 100)])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_whole_sweeps_equal_products_and_thresholds(left: int, right: int, chains: int, threads: int) -> None:
    """Couplings of few bits make every sum exact, so the chains agree bit for bit."""
    g = torch.Generator().manual_seed(left)
    prior = RBM(left, right)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.copy_(torch.randint(-64, 65, parameter.shape, generator=g) / 128)
    engine = BlockGibbs(prior, chains)
    z = (torch.rand(chains, left + right, generator=g) < 0.5).float()
    ends = []
    for whole in (True, False):
        noise = Noise(torch.Generator().manual_seed(1), engine.device)
        engine.set_states(z)
        if whole:
            with number_of_threads(threads):
                engine.run(noise, 3)
                engine.run(noise, 2)
        else:
            for _ in range(5):
                engine.sweep(noise)
        ends.append((engine.states(), noise.step))
    assert torch.equal(ends[0][0], ends[1][0]) and ends[0][1] == ends[1][1] == 10


def test_sides_too_wide_for_the_kernel_run_by_products() -> None:
    z = gibbs(RBM(300, 2), torch.zeros(50, 302), 2)
    assert 0.4 < z.mean() < 0.6


@pytest.mark.parametrize("environment", [{"DVAEPP_KERNEL": "off"}, {"PATH": "/nonexistent", "CC": "nosuch"}])
def test_without_a_compiler_the_plain_path_runs(environment: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import torch; from dvaepp.kernels import gibbs as kernel; from dvaepp.priors import RBM;"
        "from dvaepp.samplers import gibbs;"
        "assert not kernel.available(); z = gibbs(RBM(3, 3), torch.zeros(100, 6), 2); assert 0.3 < z.mean() < 0.7"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
    )
    assert run.returncode == 0, run.stderr.decode()
