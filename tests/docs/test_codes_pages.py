"""The pages about codes, run as shown."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def _run(page: str) -> dict:
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
    namespace: dict = {}
    exec(compile(code, page, "exec"), namespace)
    return namespace


def test_search_page_finds_its_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    names = _run("docs/codes_search.md")
    assert names["precision"].value > 0.9 and names["reranked"] >= names["precision"].value
    assert "precision@10" in capsys.readouterr().out


def test_compression_page_saves_more_than_half(capsys: pytest.CaptureFixture[str]) -> None:
    names = _run("docs/codes_compression.md")
    assert 8 * len(names["made"].data) < 0.5 * names["images"].size  # the noise alone has 0.194 bits per pixel
    assert "bits per pixel" in capsys.readouterr().out


def test_quantizer_page_tells_all_points_apart() -> None:
    torch.manual_seed(0)
    names = _run("docs/quantizer.md")
    assert names["decoded"].shape == names["features"].shape and names["statistics"].num_codes == 16
