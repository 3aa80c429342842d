"""The lock of boundaries: what is written is read back, fills what the cache does not know, and is never believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.toys import make_wheel, spec
from torchkiln.errors import LockError
from torchkiln.layers import boundaries, boundarylock, inflate, wheel
from torchkiln.layers.inflate import Boundary
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = "ab" * 32, "cd" * 32
STREAMS = st.dictionaries(
    st.integers(0, 1 << 40), st.builds(Boundary, st.integers(0, 1 << 40), st.integers(0, 7)), min_size=1
)
WHEELS = st.dictionaries(st.builds("{:064x}".format, st.integers(0, 5)), STREAMS)


@given(WHEELS)
def test_what_is_written_is_read_back(found: dict[str, dict[int, Boundary]]) -> None:
    """One line a wheel, sorted, whatever the order."""
    text = boundarylock.render(found)
    assert boundarylock.parse(text) == found
    assert boundarylock.render(dict(reversed(found.items()))) == text
    assert len(text.splitlines()) == 1 + len(found)


def test_lines_of_two_branches_are_put_together() -> None:
    """Git keeps both sides' lines of a wheel."""
    lines = f"{ONE} 5:80:1\n{TWO} 7:9:0\n{ONE} 6:99:7\n"
    assert boundarylock.parse(lines) == {ONE: {5: Boundary(80, 1), 6: Boundary(99, 7)}, TWO: {7: Boundary(9, 0)}}


@pytest.mark.parametrize("line", [f"{ONE}", f"{ONE} 5:80", f"{ONE} 5:80:8", f"{ONE[1:]} 5:80:1", "<<<<<<< HEAD"])
def test_a_line_that_is_none_is_told(line: str) -> None:
    """With what to do about it."""
    with pytest.raises(LockError, match="tells no boundaries"):
        boundarylock.parse(f"{ONE} 5:80:1\n{line}\n")


def test_a_file_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    """One that can't be read is an error."""
    assert boundarylock.read(tmp_path / "none") == {}
    (tmp_path / "bad").write_bytes(b"\xff")
    with pytest.raises(LockError, match="cannot be read"):
        boundarylock.read(tmp_path / "bad")


def test_a_build_goes_without_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would only have been quicker; the line is told all the same."""
    (tmp_path / "bad").write_text("garbage\n")
    assert boundarylock.spared(tmp_path / "bad") == {}
    assert "'garbage' tells no boundaries" in capsys.readouterr().err


def test_the_cache_is_given_what_it_does_not_know(tmp_path: Path) -> None:
    """What it found itself stays; other wheels of the lock are left alone."""
    boundaries.write(tmp_path, ONE, {5: Boundary(80, 1)})
    boundarylock.give(tmp_path, {ONE: {5: Boundary(1, 1), 6: Boundary(99, 7)}, TWO: {7: Boundary(9, 0)}}, [ONE])
    assert boundaries.read(tmp_path, ONE) == {5: Boundary(80, 1), 6: Boundary(99, 7)}
    assert boundaries.read(tmp_path, TWO) == {}


def test_large_streams_are_noted(tmp_path: Path) -> None:
    """Those of small ones would be many, and spare little."""
    small, large = Boundary(boundarylock.LARGE * 8 - 1, 3), Boundary(boundarylock.LARGE * 8, 3)
    boundaries.write(tmp_path, ONE, {5: small, 6: large})
    boundaries.write(tmp_path, TWO, {5: small})
    assert boundarylock.large(tmp_path, [ONE, TWO]) == {ONE: {6: large}}


def test_another_machine_inflates_only_what_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same layer, though it has never seen the wheel; a lie in the lock costs time and is set right."""
    text = b"".join(b"%d lines of text\n" % (number * 7919) for number in range(60000))
    pins, paths = spec(make_wheel(tmp_path, files={"toy/large": text, "toy/small.py": b"x = 1\n"}))
    (pin,) = pins.pins
    layer = wheel.build(Store(tmp_path / "first"), pins, paths, boundaries=tmp_path / "here")
    monkeypatch.setattr(boundarylock, "LARGE", 1 << 10)
    locked = boundarylock.parse(boundarylock.render(boundarylock.large(tmp_path / "here", [pin.sha256])))
    inflated: list[int] = []
    copy = inflate.Inflater.copy

    def watched(self: inflate.Inflater, source: inflate.Source, size: int, *sums: object, packed: int = 0) -> object:
        if packed:
            inflated.append(size)
        return copy(self, source, size, *sums, packed=packed)  # type: ignore[arg-type]

    monkeypatch.setattr(inflate.Inflater, "copy", watched)
    boundarylock.give(tmp_path / "there", locked, paths)
    there = {"known": layer, "boundaries": tmp_path / "there"}
    assert wheel.build(Store(tmp_path / "second"), pins, paths, **there) == layer  # type: ignore[arg-type]
    assert inflated
    assert len(text) not in inflated
    lie = {pin.sha256: {place: Boundary(each.last + 1, 0) for place, each in locked[pin.sha256].items()}}
    boundarylock.give(tmp_path / "there2", lie, paths)
    there["boundaries"] = tmp_path / "there2"
    assert wheel.build(Store(tmp_path / "third"), pins, paths, **there) == layer  # type: ignore[arg-type]
    assert boundaries.read(tmp_path / "there2", pin.sha256) == boundaries.read(tmp_path / "here", pin.sha256)
