import sys
import textwrap
from pathlib import Path

import pytest

import dvaepp.smoothing
from dvaepp.registry import members
from dvaepp.smoothing import MEMBERS, Smoothing


def test_every_member_is_importable_from_the_family() -> None:
    for member in MEMBERS.values():
        assert getattr(dvaepp.smoothing, member.__name__) is member
        assert member.__name__ in dir(dvaepp.smoothing)
    with pytest.raises(AttributeError, match="no attribute 'Triangular'"):
        _ = dvaepp.smoothing.Triangular


def test_a_new_file_is_found_and_two_members_in_one_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "family"
    package.mkdir()
    (package / "__init__.py").write_text("")
    member = """
    from dvaepp.smoothing.base import Smoothing
    class {name}(Smoothing):
        def _sample(self, logits, rho):
            return rho
    """
    (package / "first.py").write_text(textwrap.dedent(member.format(name="First")))
    monkeypatch.syspath_prepend(str(tmp_path))
    import family  # type: ignore[import-not-found]

    assert [cls.__name__ for cls in members(family, Smoothing).values()] == ["First"]
    (package / "both.py").write_text(textwrap.dedent(member.format(name="A") + member.format(name="B")))
    with pytest.raises(TypeError, match="family.both defines two members"):
        members(family, Smoothing)
    sys.modules.pop("family")
