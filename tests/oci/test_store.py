"""The store is an OCI image layout that other tools can read, and whole at every instant."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from torchkiln.errors import ImageError, StoreError
from torchkiln.oci import digest as digests
from torchkiln.oci.image import LAYER_TYPE, Config, Image, Layer, append, config_bytes, manifest_bytes
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType


def a_layer(store: Store, data: bytes) -> Layer:
    """A layer whose content does not matter."""
    return Layer(descriptor=store.put(data, LAYER_TYPE), diff_id=digests.of_bytes(data), unpacked_size=len(data))


def test_same_bytes_are_one_blob(tmp_path: Path) -> None:
    """Put is idempotent and leaves nothing but the blob."""
    store = Store(tmp_path)
    assert store.put(b"x", LAYER_TYPE) == store.put(b"x", LAYER_TYPE)
    assert [path.name for path in store.blobs.iterdir()] == [digests.encoded(digests.of_bytes(b"x"))]


def test_a_blob_that_was_damaged_is_whole_once_it_is_put_again(tmp_path: Path) -> None:
    """What lies under its digest is replaced, whatever it is."""
    store = Store(tmp_path)
    path = store.path(store.put(b"whole", LAYER_TYPE).digest)
    path.write_bytes(b"whale")
    store.put(b"whole", LAYER_TYPE)
    assert path.read_bytes() == b"whole"


def test_unfinished_blob_disappears(tmp_path: Path) -> None:
    """A writer that is not committed leaves nothing."""
    store = Store(tmp_path)
    with store.writer() as writer:
        writer.write(b"half")
    assert list(store.blobs.iterdir()) == []


def test_a_signal_at_any_instant_leaves_no_part(tmp_path: Path) -> None:
    """Whichever line of beginning and writing a blob raises, nothing of it stays."""
    store = Store(tmp_path)
    store.put(b"", "")

    def write(stop: int) -> int:
        """Raise at the line of that number; gives the lines that ran."""
        lines = 0

        def trace(_frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
            nonlocal lines
            lines += event == "line"
            if event == "line" and lines == stop:
                raise SystemExit(143)
            return trace

        sys.settrace(trace)
        try:
            with store.writer() as writer:
                writer.write(b"half")
                sys.settrace(None)
        finally:
            sys.settrace(None)
        return lines

    for stop in range(1, write(0) + 1):
        with pytest.raises(SystemExit):
            write(stop)
        assert not list(tmp_path.rglob(".partial-*")), stop


def test_image_is_named_by_its_target(tmp_path: Path) -> None:
    """index.json names each manifest once, with the reference name of image-layout.md."""
    store = Store(tmp_path)
    image = append(Image(config=Config(user="1000:0")), [a_layer(store, b"one"), a_layer(store, b"two")])
    first = store.put_image(image, "torch25-cu124")
    second = store.put_image(append(image, [a_layer(store, b"three")]), "torch25-cu124")
    index = json.loads((tmp_path / "index.json").read_bytes())
    assert [m["annotations"]["org.opencontainers.image.ref.name"] for m in index["manifests"]] == ["torch25-cu124"]
    assert store.refs()["torch25-cu124"].digest == second.digest != first.digest
    assert json.loads((tmp_path / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    manifest = json.loads(store.read(second.digest))
    assert store.read(digests.parse(manifest["config"]["digest"]))


def test_image_with_a_missing_layer_is_not_named(tmp_path: Path) -> None:
    """A name never stands for something incomplete."""
    store = Store(tmp_path)
    layer = a_layer(store, b"one")
    store.path(layer.descriptor.digest).unlink()
    with pytest.raises(StoreError, match="missing"):
        store.put_image(Image(config=Config(), layers=(layer,)), "t")
    assert store.refs() == {}


def test_equal_images_have_equal_bytes(tmp_path: Path) -> None:
    """Order of variables and labels in memory does not reach the digest."""
    layer = a_layer(Store(tmp_path), b"one")
    one = Image(config=Config(env={"A": "1", "B": "2"}, labels={"x": "1", "y": "2"}), layers=(layer,))
    two = Image(config=Config(env={"B": "2", "A": "1"}, labels={"y": "2", "x": "1"}), layers=(layer,))
    assert manifest_bytes(one) == manifest_bytes(two)
    document = json.loads(config_bytes(one))
    assert document["rootfs"]["diff_ids"] == [layer.diff_id]
    assert len(document["history"]) == 1


@pytest.mark.parametrize("text", ["sha256:../../etc/passwd", "sha256:" + "A" * 64, "md5:" + "0" * 32, ""])
def test_only_sha256_digests_become_file_names(text: str) -> None:
    """A digest from outside can't point anywhere else."""
    with pytest.raises(ImageError, match="digest"):
        digests.parse(text)


def test_damaged_index_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    """Never silently replaced: it names images."""
    (tmp_path / "index.json").write_text("[]")
    with pytest.raises(StoreError, match="not an OCI image index"):
        Store(tmp_path).refs()
