from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests import rawlayers
from tests.rawlayers import file, layer
from torchkiln.errors import ImageError, StoreError
from torchkiln.oci import content, load, zstd
from torchkiln.oci import digest as digests
from torchkiln.oci.image import (
    LAYER_TYPE,
    MANIFEST_TYPE,
    ZSTD_TYPE,
    Config,
    Descriptor,
    Image,
    Layer,
    canonical,
    config_bytes,
    manifest_bytes,
)
from torchkiln.oci.store import Store
from torchkiln.oci.verify import lying, verify

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "store")


@pytest.fixture
def image(store: Store) -> Image:
    """Two layers, stored under the name `toy`."""
    made = Image(config=Config(), layers=(layer(store, file("a", b"1" * 4000)), layer(store, file("b", b"2"))))
    store.put_image(made, "toy")
    return made


def changed(store: Store, image: Image, change: Any) -> Descriptor:  # noqa: ANN401  a function on two documents
    """A manifest for documents that `change` has altered, its config's digest set right again."""
    manifest, config = json.loads(manifest_bytes(image)), json.loads(config_bytes(image))
    change(manifest, config)
    described = store.put(canonical(config), "")
    manifest["config"] |= {"digest": described.digest, "size": described.size}
    return replace(store.put(canonical(manifest), ""), media_type=MANIFEST_TYPE)


def test_a_sound_image(store: Store, image: Image) -> None:
    """Nothing is wrong with it, whether it is given by name or by value."""
    assert verify(store, "toy") == ()
    assert verify(store, image) == ()


def test_unknown_name(store: Store, image: Image) -> None:
    """A name nobody gave is an error that lists those there are."""
    assert image.layers
    with pytest.raises(StoreError, match="toy"):
        verify(store, "toi")


def test_every_mismatch_is_reported(store: Store, image: Image) -> None:
    """One changed byte, one missing blob: both, each with expected and actual."""
    first, second = image.layers
    blob = store.path(first.descriptor.digest)
    damaged = bytearray(blob.read_bytes())
    damaged[-1] ^= 1  # size modulo 2^32, at the end of gzip
    blob.write_bytes(damaged)
    store.path(second.descriptor.digest).unlink()
    found = {mismatch.what: mismatch for mismatch in verify(store, "toy")}
    assert set(found) == {"digest of layer 0", "layer 0", "layer 1"}
    assert found["digest of layer 0"].expected == first.descriptor.digest
    assert found["digest of layer 0"].actual == digests.of_bytes(bytes(damaged))
    assert (found["layer 1"].expected, found["layer 1"].actual) == ("in the store", "missing")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda m, _: m.update(schemaVersion=1), ["schemaVersion"]),
        (lambda m, _: m.update(mediaType="text/plain"), ["mediaType of the manifest"]),
        (lambda m, _: m["layers"][0].update(size=1), ["size of layer 0"]),
        (lambda m, _: m["layers"].pop(), ["number of diff_ids", "number of history entries with a layer"]),
        (lambda _, c: c["history"].pop(), ["number of history entries with a layer"]),
        (lambda _, c: c["history"].append({"created_by": "ENV", "empty_layer": True}), []),
        (lambda _, c: c.pop("history"), []),
        (lambda _, c: c["rootfs"]["diff_ids"].reverse(), ["diff_id of layer 0", "diff_id of layer 1"]),
        (lambda _, c: c.pop("rootfs"), ["config"]),
        (lambda m, _: m.pop("layers"), ["manifest"]),
    ],
)
def test_documents_that_disagree(store: Store, image: Image, change: Any, what: list[str]) -> None:  # noqa: ANN401
    """Manifest, config and layers are held against each other."""
    assert [mismatch.what for mismatch in verify(store, changed(store, image, change))] == what


def test_a_value_that_is_not_what_is_stored(store: Store, image: Image) -> None:
    """A value says more than a manifest: the unpacked size."""
    first, second = image.layers
    store.put_image(replace(image, layers=(replace(first, unpacked_size=1), second)), "toy")
    wrong = verify(store, replace(image, layers=(replace(first, unpacked_size=1), second)))
    assert [(mismatch.what, mismatch.expected) for mismatch in wrong] == [("unpacked size of layer 0", "1")]


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (rawlayers.tar([file("a"), file("a")]), "entries for 'a' in layer 0"),
        (rawlayers.tar([file("a"), file("./a")]), "entries for './a' in layer 0"),
        (rawlayers.tar([file("../a")]), "a path of layer 0"),
        (b"not a tar" * 200, "layer 0"),
        (rawlayers.tar([file("a", b"x")])[:700], "layer 0"),
    ],
)
def test_layers_that_break_rules(store: Store, raw: bytes, what: str) -> None:
    """A path twice (layer.md), a path that climbs out, and what is no tar."""
    bad: Layer = layer(store, raw=raw)
    store.put_image(Image(config=Config(), layers=(bad,)), "bad")
    assert what in [mismatch.what for mismatch in verify(store, "bad")]


def test_plain_layers_and_documents_of_others(store: Store) -> None:
    """A layer that is no gzip, as Docker saves it, in a manifest that is not written as ours: nothing is wrong."""
    raw = rawlayers.tar([file("a", b"x" * 9000)])
    blob = store.put(raw, "application/vnd.oci.image.layer.v1.tar")
    plain = Layer(descriptor=blob, diff_id=blob.digest, unpacked_size=blob.size)
    pretty = json.dumps(json.loads(manifest_bytes(Image(config=Config(), layers=(plain,)))), indent=3).encode()
    store.put(config_bytes(Image(config=Config(), layers=(plain,))), "")
    store.tag("theirs", store.put(pretty, MANIFEST_TYPE))
    assert verify(*load.manifest_of(f"oci:{store.root}:theirs")) == ()
    store.path(blob.digest).write_bytes(raw.replace(b"x", b"y"))
    assert lying(verify(*load.manifest_of(f"oci:{store.root}:theirs"))) == {blob.digest}


def test_zstd_layers(store: Store) -> None:
    """They are sound in an OCI manifest, and beside gzip; what the type says of zstd and the bytes don't, is told."""
    one, two = layer(store, file("a", b"1"), media_type=ZSTD_TYPE), layer(store, file("b", b"2"))
    image = Image(config=Config(), layers=(one, two))
    store.put_image(image, "mixed")
    assert verify(store, "mixed") == ()
    assert verify(store, image) == ()

    def exchanged(manifest: Any, _: Any) -> None:  # noqa: ANN401
        manifest["layers"][0]["mediaType"], manifest["layers"][1]["mediaType"] = LAYER_TYPE, ZSTD_TYPE

    wrong = verify(store, changed(store, image, exchanged))
    assert [(one.what, one.actual) for one in wrong] == [
        ("mediaType of layer 0", ZSTD_TYPE),
        ("mediaType of layer 1", LAYER_TYPE),
    ]
    docker = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = replace(changed(store, image, lambda m, _: m.update(mediaType=docker)), media_type=docker)
    assert [one.what for one in verify(store, manifest)] == ["mediaType of a manifest with zstd layers"]


@pytest.mark.parametrize("cut", [4, 5, 40, -5, -1])
def test_a_zstd_layer_that_is_cut_off(store: Store, cut: int) -> None:
    """Wherever it ends, that is damage: nothing shorter is taken for the layer."""
    whole = rawlayers.packed(rawlayers.tar([file("a", random.Random(1).randbytes(5000))]), ZSTD_TYPE)  # noqa: S311
    part = store.put(whole[:cut], ZSTD_TYPE)
    store.put_image(Image(config=Config(), layers=(Layer(descriptor=part, diff_id=part.digest, unpacked_size=9),)), "x")
    assert "layer 0" in [one.what for one in verify(store, "x")]
    with pytest.raises(ImageError):
        content.measure(store, part.digest)


@pytest.mark.parametrize("place", [6, 20, 3000, -2])
def test_a_zstd_layer_that_is_damaged(store: Store, place: int) -> None:
    """A changed bit is noticed by the frame's own checksum, where its blocks do not show it."""
    blob = bytearray(rawlayers.packed(rawlayers.tar([file("a", random.Random(1).randbytes(5000))]), ZSTD_TYPE))  # noqa: S311
    blob[place] ^= 4
    with pytest.raises(ImageError, match="damaged"):
        content.measure(store, store.put(bytes(blob), ZSTD_TYPE).digest)


def test_zstd_as_others_write_it(store: Store) -> None:
    """Several frames, and frames to skip before, between and behind them, as zstd:chunked has: one tar."""
    data = rawlayers.tar([file("a", b"x" * 70_000)])
    skipped = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
    frames = [rawlayers.packed(data[at : at + 30_000], ZSTD_TYPE) for at in range(0, len(data), 30_000)]
    blob = store.put(skipped + skipped.join(frames) + skipped, ZSTD_TYPE)
    assert content.measure(store, blob.digest) == (digests.of_bytes(data), len(data))
    with pytest.raises(ImageError, match="damaged"):
        content.measure(store, store.put(b"".join(frames) + b"garbage", ZSTD_TYPE).digest)


def test_a_frame_that_asks_for_much_memory_is_refused(store: Store) -> None:
    """A window of 2 GiB, in a frame of few bytes, is not made."""
    frame = zstd.FRAME + bytes([0, 21 << 3]) + b"\x01\0\0"  # no size, window 2^31, one last block that is empty
    with pytest.raises(ImageError, match="memory"):
        content.measure(store, store.put(frame, ZSTD_TYPE).digest)


def test_only_what_lies_is_called_lying(store: Store, image: Image) -> None:
    """A sound blob about which something else is wrong is not: other images may need it."""
    wrong = verify(store, changed(store, image, lambda _, c: c["rootfs"]["diff_ids"].reverse()))
    assert wrong
    assert lying(wrong) == frozenset()
