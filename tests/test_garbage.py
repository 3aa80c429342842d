"""`gc` forgets what no named image needs, and nothing else."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests import rawlayers
from torchkiln import garbage, rootfs
from torchkiln.errors import StoreError
from torchkiln.layers import boundaries
from torchkiln.layers.inflate import Boundary
from torchkiln.oci import digest as digests
from torchkiln.oci.image import LAYER_TYPE, Config, Image, Layer, recorded
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from torchkiln.home import Home


def test_named_images_stay_whole(home: Home) -> None:
    """Blobs and index entries of a named image stay; strays, partial files and their index entries go."""
    store = Store(home.store)
    kept = Layer(descriptor=store.put(b"kept", LAYER_TYPE), diff_id=digests.of_bytes(b"kept"), unpacked_size=4)
    stray = Layer(descriptor=store.put(b"stray", LAYER_TYPE), diff_id=digests.of_bytes(b"stray"), unpacked_size=5)
    home.record("wheel-kept", kept.to_json())
    home.record("wheel-stray", stray.to_json())
    store.put_image(Image(config=Config(), layers=(kept,)), "row")
    (home.temporary / "forgotten").write_bytes(b"12")
    (store.blobs / ".partial-1").write_bytes(b"123")
    (home.rootfs / "tree").mkdir()
    (home.rootfs / "tree" / "f").write_bytes(b"1")
    (home.rootfs / "tree" / "out").symlink_to("/etc")
    wheel = home.wheel("a" * 64, "x.whl")
    wheel.parent.mkdir()
    wheel.write_bytes(b"wheel")
    remembered = home.boundaries / ("a" * 64)
    remembered.parent.mkdir()
    remembered.write_bytes(b"boundaries")

    collected = garbage.collect(home)

    assert collected.files == 6
    assert store.has(kept.descriptor)
    assert not store.has(stray.descriptor)
    assert home.lookup("wheel-kept") == kept.to_json()
    assert home.lookup("wheel-stray") is None
    assert list(home.temporary.iterdir()) == list(home.rootfs.iterdir()) == []
    assert wheel.exists()
    assert remembered.exists()
    assert garbage.collect(home) == garbage.Collected(files=0, size=0)
    garbage.collect(home, wheels=True)
    assert not wheel.exists()
    assert not remembered.exists()
    store.put_image(Image(config=Config(), layers=(kept,)), "row")


def test_forgotten_image_goes(home: Home) -> None:
    """A name that is given up frees what only it needed; an unknown one is an error that lists the names."""
    store = Store(home.store)
    layer = Layer(descriptor=store.put(b"old", LAYER_TYPE), diff_id=digests.of_bytes(b"old"), unpacked_size=3)
    store.put_image(Image(config=Config(), layers=(layer,)), "old-row")
    with pytest.raises(StoreError, match="old-rwo") as caught:
        garbage.collect(home, forget=["old-rwo"])
    assert "old-row" in caught.value.remedy
    assert store.has(layer.descriptor)
    assert garbage.collect(home, forget=["old-row"]).files == 3
    assert store.refs() == {}
    assert not store.has(layer.descriptor)


def test_what_a_killed_write_left_goes(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside each file that is written as a whole; the file itself, and locks, stay."""
    store = Store(home.store)
    layer = Layer(descriptor=store.put(b"one", LAYER_TYPE), diff_id=digests.of_bytes(b"one"), unpacked_size=3)
    store.put_image(Image(config=Config(), layers=(layer,)), "row")
    home.record("wheel-one", layer.to_json())
    before = {path for path in home.root.rglob("*") if path.is_file()} | {home.locks / "use.lock"}

    def killed(*_: object, **_more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        patched.setattr(type(home.root), "unlink", killed)  # nobody tidies up after SIGKILL
        with pytest.raises(KeyboardInterrupt):
            home.record("wheel-one", {})
        with pytest.raises(KeyboardInterrupt):
            store.tag("row", layer.descriptor)
        with pytest.raises(KeyboardInterrupt):
            boundaries.write(home.boundaries, "a" * 64, {1: Boundary(2, 3)})
    assert len({path for path in home.root.rglob("*") if path.is_file()} - before) == 3
    assert garbage.collect(home).files == 3
    assert {path for path in home.root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("damage", ["other digest", "no manifest", "missing"])
def test_nothing_goes_while_a_manifest_cannot_be_read(home: Home, damage: str) -> None:
    """Whatever became of it: it can't be told what that image needs, which is named with the ways out; both work."""
    store = Store(home.store)
    layers = [
        Layer(descriptor=store.put(data, LAYER_TYPE), diff_id=digests.of_bytes(data), unpacked_size=3)
        for data in (b"one", b"two")
    ]
    images = [Image(config=Config(), layers=(layer,)) for layer in layers]
    bad, _ = (store.put_image(image, ref) for ref, image in zip(("bad", "good"), images, strict=True))
    stray = store.put(b"stray", LAYER_TYPE)
    text = store.read(bad.digest)
    lying = text.replace(layers[0].descriptor.digest.encode(), stray.digest.encode())
    store.discard(bad.digest)
    if damage != "missing":
        store.path(bad.digest).write_bytes(lying if damage == "other digest" else b"x" + text)
    for forget in ([], ["good"]):
        with pytest.raises(StoreError, match="manifest of bad is missing or damaged") as raised:
            garbage.collect(home, forget=forget)
        assert "./inv gc --forget bad " in raised.value.remedy
        assert all(store.has(blob) for blob in (stray, *(layer.descriptor for layer in layers)))
        assert store.refs().keys() == {"bad", "good"}
    assert garbage.collect(home, forget=["bad"]).files > 0
    assert [store.has(layer.descriptor) for layer in layers] == [False, True]


def test_a_killed_collection_leaves_no_half_tree(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees are deleted file by file; one that lost a file counts as whole to nobody, and the rest goes next time."""
    store = Store(home.store)
    layer = rawlayers.layer(store, rawlayers.file("one"), rawlayers.file("two"))
    store.put_image(Image(config=Config(), layers=(layer,)), "row")
    tree = rootfs.unpack(home, store, layer)

    def killed(path: Path) -> None:
        next(path.rglob("one")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            garbage.collect(home)
    assert not tree.exists()
    assert sorted(path.name for path in rootfs.unpack(home, store, layer).iterdir()) == ["one", "two"]
    garbage.collect(home)
    assert list(home.temporary.iterdir()) == list(home.rootfs.iterdir()) == []


@pytest.mark.parametrize(
    "content", ["{x", "null", "[1]", '{"a": 1}', '{"descriptor": {"digest": "x"}}', '{"descriptor": 7}']
)
def test_damaged_index_entry_is_no_layer(home: Home, content: str) -> None:
    """Whatever an entry holds, it is as if it were not there, and `gc` goes on."""
    (home.index / "wheel-x.json").write_text(content)
    assert recorded(home.lookup("wheel-x")) is None
    garbage.collect(home)
