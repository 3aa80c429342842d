"""`gc` forgets what no named image needs, and nothing else."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests import rawlayers
from torchkiln import garbage, rootfs
from torchkiln.errors import StoreError
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
