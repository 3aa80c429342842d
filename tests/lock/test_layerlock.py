"""The lock of layers: what is written is read back, and a layer that is another than the known one is an error."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchkiln.errors import LayerMismatchError, LockError
from torchkiln.lock import layerlock
from torchkiln.oci import digest
from torchkiln.oci.image import LAYER_TYPE, Descriptor, Layer

if TYPE_CHECKING:
    from pathlib import Path

KEY = "wheel-" + "a" * 64
ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"


def layer(seed: str, *, size: int = 9, title: str = "toy 1.0", media_type: str = LAYER_TYPE) -> Layer:
    """A layer that nobody made."""
    blob = Descriptor(media_type=media_type, digest=digest.of_bytes(seed.encode()), size=size)
    return Layer(descriptor=blob, diff_id=digest.of_bytes(b"tar"), unpacked_size=10240, title=title)


LINE = layerlock.render({KEY: layer("one")}).splitlines()[1]
LAYERS = st.dictionaries(
    st.builds(
        "{}-{:064x}{}".format, st.sampled_from(["wheel", "base"]), st.integers(0, 9), st.sampled_from(["", ".zstd-3-1"])
    ),
    st.builds(layer, st.text(), size=st.integers(0, 1 << 40), media_type=st.sampled_from([LAYER_TYPE, ZSTD])),
)


@given(LAYERS)
def test_what_is_written_is_read_back(layers: dict[str, Layer]) -> None:
    """In any order of making, one line a layer, sorted by key."""
    text = layerlock.render(layers)
    assert layerlock.parse(text) == layers
    assert layerlock.render(dict(reversed(layers.items()))) == text
    assert len(text.splitlines()) == 1 + len(layers)


@given(LAYERS, LAYERS)
def test_lines_of_two_branches_merge(ours: dict[str, Layer], theirs: dict[str, Layer]) -> None:
    """Git may put both sides' lines into one file, equal ones twice: that is the union."""
    theirs = {key: ours.get(key, one) for key, one in theirs.items()}
    assert layerlock.parse(layerlock.render(ours) + layerlock.render(theirs)) == ours | theirs


def test_a_merge_that_gives_one_key_two_layers_is_refused() -> None:
    """One of the branches made it with other tools; nobody can tell which is right, so both lines are named."""
    text = layerlock.render({KEY: layer("one")}) + layerlock.render({KEY: layer("two")})
    with pytest.raises(LockError, match=f"toy 1.0: 2 layers for {KEY}"):
        layerlock.parse(text)


def test_a_merge_that_gives_one_layer_two_titles_is_none() -> None:
    """What people call it plays no part, in either order."""
    lines = [layerlock.render({KEY: layer("one", title=title)}) for title in ("toy 1.0", "toy, renamed")]
    for text in ("".join(lines), "".join(reversed(lines))):
        assert layerlock.same(layerlock.parse(text)[KEY], layer("one"))


@pytest.mark.parametrize(
    "line",
    ["<<<<<<< ours", LINE.rpartition(" ")[0].rpartition(" ")[0], f"../{LINE}", LINE.replace("sha256:", "sha512:")],
)
def test_a_line_that_is_no_layer_is_refused(line: str) -> None:
    """With where it stands and what writes such lines."""
    with pytest.raises(LockError, match="is no layer") as raised:
        layerlock.parse(f"# heading\n{LINE}\n{line}\n", where="images/locks/layers.lock")
    assert raised.value.where == "images/locks/layers.lock"
    assert layerlock.COMMAND in raised.value.remedy


def test_no_file_knows_nothing(tmp_path: Path) -> None:
    """A checkout without one builds all the same; one that can't be read is an error."""
    assert layerlock.read(tmp_path / "layers.lock") == {}
    (tmp_path / "layers.lock").write_bytes(b"\xff")
    with pytest.raises(LockError, match="cannot be read"):
        layerlock.read(tmp_path / "layers.lock")


def test_a_layer_that_is_another_than_the_known_one_is_an_error() -> None:
    """It names the layer, what differs, and the versions that made it; a title alone makes no difference."""
    known = {KEY: layer("one")}
    layerlock.hold(known, KEY, layer("one", title="other words"), versions=str)
    layerlock.hold(known, "wheel-" + "b" * 64, layer("unknown"), versions=str)
    with pytest.raises(LayerMismatchError) as raised:
        layerlock.hold(known, KEY, layer("two", size=10), versions=lambda: "layer format 1, isal 1.8")
    message = str(raised.value)
    assert "toy 1.0 is not the layer" in message
    assert f"digest {layer('two').descriptor.digest} instead of {layer('one').descriptor.digest}" in message
    assert "size 10 instead of 9" in message
    assert "layer format 1, isal 1.8" in message
    assert KEY in message
    for other in (
        replace(layer("one"), diff_id=digest.of_bytes(b"other")),
        replace(layer("one"), unpacked_size=1),
        layer("one", media_type=ZSTD),
    ):
        with pytest.raises(LayerMismatchError):
            layerlock.hold(known, KEY, other, versions=str)
