from __future__ import annotations

import gzip
import io
import json
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests import rawlayers
from tests.rawlayers import file, layer
from torchkiln.errors import ImageError, VerifyError
from torchkiln.oci import load
from torchkiln.oci.image import (
    ARCHITECTURES,
    Config,
    Image,
    canonical,
    config_bytes,
    manifest_descriptor,
)
from torchkiln.oci.store import Store
from torchkiln.oci.verify import verify

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "store")


@pytest.fixture
def image(store: Store) -> Image:
    """Runs something, holds two layers."""
    config = Config(
        env={"B": "2", "A": "1=x"}, entrypoint=("init", "--"), command=("sh",), user="7:8", working_dir="/w"
    )
    return Image(config=config, layers=(layer(store, file("a", b"1")), layer(store, file("b", b"2"))))


def foreign_config(diff_ids: list[str]) -> bytes:
    """A config as other tools write it: order of their own, absent and null fields, steps without a layer."""
    return json.dumps(
        {
            "os": "linux",
            "architecture": "amd64",
            "config": {"Env": ["B=2", "A=1", "B=3"], "Cmd": ["sh"], "Entrypoint": None, "Labels": None},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
            "history": [
                {"created_by": "one"}, {"created_by": "ENV", "empty_layer": True}, {"created_by": "two"},
            ],
        },
        indent=1,
    ).encode()  # fmt: skip


def test_our_own_layout_reads_back(store: Store, image: Image) -> None:
    """What the store writes, by name or as the only image, is read with config, sizes and digest."""
    store.put_image(image, "row")
    found = load.layout(f"oci:{store.root}:row")
    assert (found.name, found.digest) == (f"oci:{store.root}:row", manifest_descriptor(image).digest)
    assert load.layout(str(store.root)).digest == found.digest
    assert found.image == image


def test_foreign_documents(store: Store, image: Image) -> None:
    """Their digest stays theirs; the last of equal variables counts; titles come from steps that made a layer."""
    config = store.put(
        foreign_config([one.diff_id for one in image.layers]), "application/vnd.oci.image.config.v1+json"
    )
    manifest = {
        "schemaVersion": 2,
        "config": config.to_json(),
        "layers": [one.descriptor.to_json() for one in image.layers],
    }
    described = store.put(json.dumps(manifest, indent=2).encode(), "application/vnd.oci.image.manifest.v1+json")
    store.tag("theirs", described)
    found = load.layout(f"{store.root}:theirs")
    assert found.digest == described.digest
    assert dict(found.image.config.env) == {"B": "3", "A": "1"}
    assert (found.image.config.command, found.image.config.entrypoint) == (("sh",), ())
    assert [one.title for one in found.image.layers] == ["one", "two"]
    assert verify(store, "theirs") == ()


def test_which_image(store: Store, image: Image) -> None:
    """Several names need one to be chosen; an unknown one names the others; an index leads to this machine's image."""
    store.put_image(image, "one")
    store.put_image(replace(image, config=Config()), "two")
    for reference in (str(store.root), f"{store.root}:three"):
        with pytest.raises(ImageError, match="one, two"):
            load.layout(reference)
    here = manifest_descriptor(image).to_json() | {"platform": {"os": "linux", "architecture": ARCHITECTURES["x86_64"]}}
    there = manifest_descriptor(replace(image, config=Config())).to_json()
    there |= {"platform": {"os": "linux", "architecture": "s390x"}}
    index = store.put(canonical({"schemaVersion": 2, "manifests": [there, here]}), load.INDEX_TYPES[0])
    store.tag("both", index)
    assert load.layout(f"{store.root}:both").digest == manifest_descriptor(image).digest


def test_no_layout(tmp_path: Path) -> None:
    """A folder without an index, and one with something else in its place, are named."""
    with pytest.raises(ImageError, match="no OCI image layout"):
        load.layout(f"oci:{tmp_path}")
    (tmp_path / "index.json").write_text('{"manifests": 7}')
    with pytest.raises(ImageError, match="not an OCI image index"):
        load.layout(f"oci:{tmp_path}")
    (tmp_path / "index.json").write_text("garbage")
    with pytest.raises(ImageError, match="not an OCI image index"):
        load.layout(f"oci:{tmp_path}")


def test_damaged_layer_is_named(store: Store, image: Image) -> None:
    """The error says which blob cannot be read."""
    store.put_image(image, "row")
    digest = image.layers[1].descriptor.digest
    blob = bytearray(store.path(digest).read_bytes())
    blob[-6] ^= 1  # CRC of gzip
    store.path(digest).write_bytes(blob)
    with pytest.raises(ImageError, match="damaged") as caught:
        load.layout(f"oci:{store.root}:row")
    assert caught.value.where == f"layer {digest}"


def test_layers_that_lie(store: Store, image: Image) -> None:
    """A config whose diff_ids are not those of the layers is refused, naming each."""
    config = store.put(foreign_config([one.diff_id for one in reversed(image.layers)]), "")
    manifest = {
        "schemaVersion": 2,
        "config": config.to_json(),
        "layers": [x.descriptor.to_json() for x in image.layers],
    }
    store.tag("bad", store.put(canonical(manifest), ""))
    with pytest.raises(VerifyError) as caught:
        load.layout(f"{store.root}:bad")
    assert caught.value.what.count("\n") == 1


def docker_archive(config: bytes, layers: list[bytes]) -> bytes:
    """What engines before 25.0 write: plain tars in folders, the second layer a link to the first if they are equal."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:

        def add(name: str, content: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))

        for number, content in enumerate(layers):
            if content in layers[:number]:
                info = tarfile.TarInfo(f"{number}/layer.tar")
                info.type, info.linkname = tarfile.SYMTYPE, f"../{layers.index(content)}/layer.tar"
                archive.addfile(info)
            else:
                add(f"{number}/layer.tar", content)
        add("c.json", config)
        names = [f"{number}/layer.tar" for number in range(len(layers))]
        add("manifest.json", json.dumps([{"Config": "c.json", "RepoTags": ["x:y"], "Layers": names}]).encode())
    return written.getvalue()


def test_docker_archive(store: Store, tmp_path: Path) -> None:
    """What `docker save` writes becomes an image, whatever the size of the pieces it comes in."""
    plain, zipped = rawlayers.tar([file("a", b"1")]), gzip.compress(rawlayers.tar([file("b", b"2")]))
    one, two = layer(store, file("a", b"1")).diff_id, layer(store, file("b", b"2")).diff_id
    data = docker_archive(foreign_config([one, two, one]), [plain, zipped, plain])
    for size in (1, 700, len(data)):
        scratch = Store(tmp_path / f"scratch{size}")
        found = load.archive((data[at : at + size] for at in range(0, len(data), size)), scratch, "docker-daemon:x")
        assert [one.diff_id for one in found.image.layers] == [one, two, one]
        types = [one.descriptor.media_type.rpartition(".")[2] for one in found.image.layers]
        assert types == ["tar", "tar+gzip", "tar"]
        assert scratch.read(found.digest) == foreign_config([one, two, one])


@pytest.mark.parametrize(
    "data", [b"", b"x" * 5000, rawlayers.tar([file("manifest.json", b"[]")]), rawlayers.tar([file("../x")])]
)
def test_no_archive(store: Store, data: bytes) -> None:
    """Anything else an engine may send is an error."""
    with pytest.raises(ImageError):
        load.archive([data], store, "docker-daemon:x")


def test_own_config_is_kept_by_parsing(image: Image) -> None:
    """Parsing what we write loses nothing."""
    from torchkiln.oci import document  # noqa: PLC0415

    found = document.document(config_bytes(image))
    assert (found.config, found.diff_ids) == (image.config, tuple(one.diff_id for one in image.layers))
