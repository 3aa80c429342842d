"""A layer that is known is made again without inflating; what is remembered for that can't do harm."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.toys import make_wheel, spec, unpacked
from torchkiln.errors import LayerMismatchError, WheelError
from torchkiln.layers import boundaries, deflate, wheel
from torchkiln.layers.inflate import Boundary
from torchkiln.oci.digest import of_bytes
from torchkiln.oci.store import Store
from torchkiln.specs import Part

if TYPE_CHECKING:
    from torchkiln.oci.image import Layer
    from torchkiln.specs import WheelSpec

SHA256 = "ab" * 32
FOUND = {7: Boundary(0, 3), 100: Boundary(1 << 40, 0), 1 << 33: Boundary(12345, 7)}
GOLDEN = Path(__file__).parent.parent / "golden" / "golden-1.0-py3-none-any.whl"


# The file.


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """And the same content is the same file, in whatever order it was found."""
    boundaries.write(tmp_path / "a", SHA256, FOUND)
    assert boundaries.read(tmp_path / "a", SHA256) == FOUND
    boundaries.write(tmp_path / "b", SHA256, dict(reversed(FOUND.items())))
    assert (tmp_path / "a" / SHA256).read_bytes() == (tmp_path / "b" / SHA256).read_bytes()
    assert len((tmp_path / "a" / SHA256).read_bytes()) < 200


def test_what_was_remembered_before_is_kept(tmp_path: Path) -> None:
    """Parts of a wheel add to one file, and a place that is found anew is corrected."""
    boundaries.write(tmp_path, SHA256, FOUND)
    boundaries.write(tmp_path, SHA256, {8: Boundary(1, 1), 7: Boundary(2, 2)})
    assert boundaries.read(tmp_path, SHA256) == {**FOUND, 8: Boundary(1, 1), 7: Boundary(2, 2)}


def test_what_others_remember_meanwhile_is_kept(tmp_path: Path) -> None:
    """Parts of one wheel are converted at once: none loses what another found."""
    found = [{place: Boundary(place, 0)} for place in range(200)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(partial(boundaries.write, tmp_path, SHA256), found))
    assert len(boundaries.read(tmp_path, SHA256)) == len(found)
    assert [path.name for path in tmp_path.iterdir()] == [SHA256]


def test_nothing_is_remembered_of_what_is_not_there(tmp_path: Path) -> None:
    """No folder, no file."""
    assert boundaries.read(None, SHA256) == {}
    assert boundaries.read(tmp_path / "none", SHA256) == {}


def test_any_damage_is_seen(tmp_path: Path) -> None:
    """A byte changed anywhere, a file cut anywhere, one of another wheel or version: it counts as none."""
    boundaries.write(tmp_path, SHA256, FOUND)
    path = tmp_path / SHA256
    whole = path.read_bytes()
    damaged = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(len(whole))]
    damaged += [whole[:length] for length in range(len(whole))] + [whole + b"\0", whole * 2]
    for data in damaged:
        path.write_bytes(data)
        assert boundaries.read(tmp_path, SHA256) == {}
    (tmp_path / ("cd" * 32)).write_bytes(whole)
    assert boundaries.read(tmp_path, "cd" * 32) == {}


@pytest.mark.parametrize("places", [(7, 7), (9, 7)])
def test_only_one_form_is_accepted(tmp_path: Path, places: tuple[int, int]) -> None:
    """Ascending and each once, even where the checksum is right."""
    data = boundaries.HEADING + bytes.fromhex(SHA256)
    data += b"".join(boundaries._ENTRY.pack(place, 8) for place in places)
    (tmp_path / SHA256).write_bytes(data + hashlib.sha256(data).digest())
    assert boundaries.read(tmp_path, SHA256) == {}


# What is made with it.


class Kiln:
    """A wheel, its layer as it was made the first time, and a folder where its boundaries are remembered."""

    def __init__(self, folder: Path, *wheels: Path) -> None:
        self.folder = folder
        self.boundaries = folder / "boundaries"
        self.spec, self.paths = spec(*wheels)
        self.first = Store(folder / "first")
        self.layer = wheel.build(self.first, self.spec, self.paths, boundaries=self.boundaries)

    def again(self, name: str, *, known: Layer | None = None, remember: bool = True) -> tuple[Store, Layer]:
        """Make the layer once more, in a store of its own."""
        store = Store(self.folder / name)
        folder = self.boundaries if remember else None
        return store, wheel.build(store, self.spec, self.paths, known=known or self.layer, boundaries=folder)

    def same(self, name: str, **given: bool) -> None:
        """The layer that is made once more is the first one, to the last byte."""
        store, layer = self.again(name, **given)  # type: ignore[arg-type]
        assert layer == self.layer
        assert store.read(layer.descriptor.digest) == self.first.read(layer.descriptor.digest)
        assert [path.name for path in store.blobs.iterdir()] == [layer.descriptor.digest.removeprefix("sha256:")]


def text(count: int) -> bytes:
    """Content that takes several deflate blocks."""
    return b"".join(b"%d lines of text\n" % (number * 7919) for number in range(count))


@pytest.fixture
def kiln(tmp_path: Path) -> Kiln:
    """One wheel with members of many blocks, of one, stored ones, and empty ones of both kinds."""
    content = {"toy/big": text(60000), "toy/noise": os.urandom(300000), "toy/small.py": b"x = 1\n", "toy/none": b""}
    content |= {"toy/stored": text(300), "toy/hollow": b""}
    return Kiln(tmp_path, make_wheel(tmp_path, files=content, stored=["toy/stored", "toy/hollow"]))


def inflates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let any stream of a wheel that would be inflated fail the test."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("was inflated")

    monkeypatch.setattr(deflate.GzipWriter, "copy", fail)


def test_nothing_is_inflated_with_boundaries(kiln: Kiln, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes come of copying alone."""
    inflates_nothing(monkeypatch)
    kiln.same("again")


def test_a_known_layer_without_boundaries(kiln: Kiln, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is inflated once more, and then they are remembered."""
    kiln.same("again", remember=False)
    boundaries.forget(kiln.boundaries, kiln.spec.pins[0].sha256)
    kiln.same("other")
    inflates_nothing(monkeypatch)
    kiln.same("third")


def test_the_golden_layer_again(tmp_path: Path) -> None:
    """With every oddity of the golden wheel."""
    Kiln(tmp_path, GOLDEN).same("again")


def test_several_wheels_each_have_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of several wheels is made again with the files of all."""
    wheels = [make_wheel(tmp_path, name=f"toy{number}", files={f"m{number}.py": text(number)}) for number in range(4)]
    kiln = Kiln(tmp_path, *wheels)
    assert sorted(path.name for path in kiln.boundaries.iterdir()) == sorted(pin.sha256 for pin in kiln.spec.pins)
    inflates_nothing(monkeypatch)
    kiln.same("again")


def test_boundaries_of_parts_are_those_of_the_whole(kiln: Kiln, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was remembered of the whole wheel serves each part of it."""
    part: WheelSpec = replace(kiln.spec, part=Part(number=1, max_bytes=kiln.layer.descriptor.size * 2 // 3))
    store = Store(kiln.folder / "part")
    layer = wheel.build(store, part, kiln.paths)
    assert 0 < len(unpacked(store, layer)) < len(unpacked(kiln.first, kiln.layer))
    inflates_nothing(monkeypatch)
    other = Store(kiln.folder / "other")
    assert wheel.build(other, part, kiln.paths, known=layer, boundaries=kiln.boundaries) == layer


def test_without_a_known_layer_nothing_remembered_is_believed(kiln: Kiln) -> None:
    """The first time of a layer everything is checked, and what was remembered wrongly is set right."""
    right = boundaries.read(kiln.boundaries, kiln.spec.pins[0].sha256)
    boundaries.write(kiln.boundaries, kiln.spec.pins[0].sha256, dict.fromkeys(right, Boundary(0, 0)))
    made = wheel.build(Store(kiln.folder / "again"), kiln.spec, kiln.paths, boundaries=kiln.boundaries)
    assert made == kiln.layer
    assert boundaries.read(kiln.boundaries, kiln.spec.pins[0].sha256) == right


def test_a_damaged_file_leads_to_inflating(kiln: Kiln) -> None:
    """And is replaced by a sound one."""
    (path,) = kiln.boundaries.iterdir()
    whole = path.read_bytes()
    for data in (b"", whole[:-5], b"garbage" * 100):
        path.write_bytes(data)
        kiln.same(f"again {len(data)}")
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "lie",
    [
        lambda each: Boundary(each.last + 1, each.unused),
        lambda each: Boundary(1 << 50, each.unused),
        lambda each: Boundary(0, each.unused),
        lambda each: Boundary(each.last, (each.unused + 3) % 8),
        lambda each: Boundary(each.last, 7),
    ],
)
def test_a_file_that_lies_never_gives_a_layer(kiln: Kiln, lie: object) -> None:
    """Its checksum is right, its places are not: the layer is right, the lie is replaced, and nothing else is kept."""
    sha256 = kiln.spec.pins[0].sha256
    right = boundaries.read(kiln.boundaries, sha256)
    boundaries.write(kiln.boundaries, sha256, {place: lie(each) for place, each in right.items()})  # type: ignore[operator]
    assert boundaries.read(kiln.boundaries, sha256) != right
    kiln.same("again")
    assert boundaries.read(kiln.boundaries, sha256) == right


@pytest.mark.parametrize("remember", [True, False])
def test_a_wheel_that_changed_on_the_disk_is_seen(kiln: Kiln, *, remember: bool) -> None:
    """What is copied unseen is held against the digest, and then the member that is wrong is named."""
    (path,) = kiln.paths.values()
    data = bytearray(path.read_bytes())
    place = data.index(b"toy/noise") + 1000
    data[place] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(WheelError, match="toy/noise"):
        kiln.again("again", remember=remember)
    assert list(Store(kiln.folder / "again").blobs.iterdir()) == []


@pytest.mark.parametrize("remember", [True, False])
def test_a_lock_that_is_wrong_is_an_error(kiln: Kiln, *, remember: bool) -> None:
    """Another digest, or size of the tar: nothing is kept, and wheel and digests are named."""
    other = replace(kiln.layer.descriptor, digest=of_bytes(b"other"))
    for known in (replace(kiln.layer, descriptor=other), replace(kiln.layer, unpacked_size=1024)):
        with pytest.raises(LayerMismatchError, match=r"toy 1\.0 is not the one that is known") as caught:
            kiln.again("again", known=known, remember=remember)
        assert "toy-1.0-py3-none-any.whl" in caught.value.where
        assert list(Store(kiln.folder / "again").blobs.iterdir()) == []


def test_a_wrong_diff_id_is_seen_when_all_is_checked(kiln: Kiln) -> None:
    """The blob's digest stands for it as long as that is right; when everything is looked at, it is looked at too."""
    known = replace(kiln.layer, diff_id=of_bytes(b"other"))
    assert kiln.again("again", known=known)[1] == known
    other = replace(known, descriptor=replace(known.descriptor, size=1))
    with pytest.raises(LayerMismatchError, match=f"diff_id {kiln.layer.diff_id}, expected {known.diff_id}"):
        kiln.again("other", known=other)


def test_workers_remember_too(kiln: Kiln) -> None:
    """All layers at once, in processes of their own."""
    store = Store(kiln.folder / "again")
    known = {kiln.spec.key: kiln.layer}
    made = wheel.build_all(store, [kiln.spec], kiln.paths, known=known, boundaries=kiln.boundaries)
    assert made == (kiln.layer,)
    assert store.read(made[0].descriptor.digest) == kiln.first.read(made[0].descriptor.digest)
