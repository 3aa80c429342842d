from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests import rawlayers
from tests.sabotage.sabotaged_layers import ELF, Member, contents, folder, metadata
from torchkiln.errors import ImageError
from torchkiln.inspect import facts
from torchkiln.inspect.listing import Contents, merge
from torchkiln.oci import content as oci_content
from torchkiln.oci import digest as digests
from torchkiln.oci.image import LAYER_TYPE, ZSTD_TYPE, Layer
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from torchkiln.home import Home


def test_whiteouts_delete_what_lies_below() -> None:
    """A file, a folder with all in it, and an opaque folder's former content go; what the layer itself brings stays."""
    lower = [folder("a"), Member(path="a/x"), folder("b"), Member(path="b/x"), Member(path="c"), folder("ab")]
    upper = [Member(path=".wh.c"), Member(path=".wh.a"), Member(path="b/.wh..wh..opq"), Member(path="b/y")]
    assert set(merge([contents(lower), contents(upper)])) == {"b", "b/y", "ab"}


def test_whiteouts_hide_lower_layers_alone() -> None:
    """A layer's own files stay, wherever in it the whiteouts stand: layer.md lets none hide what its own layer has."""
    lower = [Member(path="a"), folder("b"), Member(path="b/x"), Member(path="c/x")]
    upper = [Member(path="a"), Member(path="b/y"), Member(path=".wh.a"), Member(path="b/.wh..wh..opq")]
    assert set(merge([contents(lower), contents(upper)])) == {"a", "b", "b/y", "c/x"}
    assert set(merge([contents(lower), contents([Member(path=".wh..wh..opq"), Member(path="z")])])) == {"z"}


def test_a_file_in_place_of_a_folder_hides_its_content() -> None:
    """As every engine does it."""
    tree = merge([contents([folder("a"), Member(path="a/x")]), contents([Member(path="a")])])
    assert set(tree) == {"a"}


def test_names_versions_and_machines_are_read() -> None:
    """METADATA's headers, and the machine of ELF files."""
    found = contents([metadata("torch", "2.13.0+cpu"), Member(path="usr/lib/x.so", data=ELF)])
    assert list(found.versions.values()) == ["torch 2.13.0+cpu"]
    assert found.entries[-1].elf == "x86_64"


def test_contents_survive_the_cache() -> None:
    """What is remembered equals what was read."""
    found = contents([metadata("torch", "1"), Member(path=".env", data=b"x"), Member(path="l", link="t")])
    assert found.secrets == ((".env", "an environment file"),)
    assert Contents.from_json(found.to_json()) == found


def _layer(store: Store, data: bytes) -> Layer:
    return Layer(descriptor=store.put(data, LAYER_TYPE), diff_id=digests.of_bytes(data), unpacked_size=1)


def test_layers_are_read_once(home: Home) -> None:
    """A damaged memory is read again; a whole one needs no blob."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    store = Store(home.store)
    layer = _layer(store, buffer.getvalue())
    (first,) = facts.contents(store, home, [layer])
    (remembered,) = home.facts.iterdir()
    remembered.write_text("{")
    assert facts.contents(store, home, [layer]) == (first,)
    store.path(layer.descriptor.digest).unlink()
    assert facts.contents(store, home, [layer]) == (first,)


def test_layers_need_not_be_compressed(home: Home) -> None:
    """Engines save images with plain tars in them."""
    store = Store(home.store)
    (found,) = facts.contents(store, home, [_layer(store, rawlayers.tar([rawlayers.file("a/b", b"x")]))])
    assert [entry.path for entry in found.entries] == ["a/b"]


def test_a_layer_has_the_same_content_in_zstd(home: Home) -> None:
    """Each form is listed by itself here, since nothing is remembered of another layer."""
    store = Store(home.store)
    layers = [
        rawlayers.layer(store, rawlayers.file("a/b", form.encode()), media_type=form)
        for form in (LAYER_TYPE, ZSTD_TYPE)
    ]
    found = facts.contents(store, home, layers)
    assert [[entry.path for entry in one.entries] for one in found] == [["a/b"], ["a/b"]]


@pytest.mark.parametrize("data", [b"no gzip", b"\x1f\x8b\x08\x00", b""])
def test_what_is_no_layer_is_named(home: Home, data: bytes) -> None:
    """A blob that is no tar is an error of the image, with its digest."""
    store = Store(home.store)
    with pytest.raises(ImageError, match="not a tar") as caught:
        facts.contents(store, home, [_layer(store, data)])
    assert digests.of_bytes(data) in caught.value.where


@pytest.mark.parametrize("many", [False, True])
def test_what_is_kept_of_a_layer_is_bounded(home: Home, monkeypatch: pytest.MonkeyPatch, *, many: bool) -> None:
    """Neither an endless name nor endless names fill the memory."""
    monkeypatch.setattr(oci_content, "MOST_NAMES", 10_000)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for number in range(200 if many else 1):
            tar.addfile(tarfile.TarInfo(f"file-{number}" if many else "x" * (9 << 20)))
    store = Store(home.store)
    with pytest.raises(ImageError, match="longer names" if many else "a header of"):
        facts.contents(store, home, [_layer(store, buffer.getvalue())])
