"""What a repository says about layers is read strictly, and what is written is read again."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests import toyregistry
from tests.toyregistry import REPOSITORY, Toy, tar
from torchkiln.errors import FetchError, ImageError, PlanError, PushError
from torchkiln.oci import digest as digests
from torchkiln.oci import layerindex
from torchkiln.oci.image import CONFIG_TYPE, INDEX_TYPE, PLAIN_TYPE, Descriptor, Layer
from torchkiln.oci.reference import destination
from torchkiln.oci.registry import connected
from torchkiln.oci.upload import send

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torchkiln.oci.registry import Registry

KEY, OTHER = f"wheel-{'0' * 64}", f"bytecode-{'1' * 64}"
DATA = tar({"opt/one": b"1" * 5000})


def layer(data: bytes = DATA, title: str = "torch 2.5.1 and 1 more") -> Layer:
    """A tar as it is is a layer too."""
    blob = Descriptor(media_type=PLAIN_TYPE, digest=digests.of_bytes(data), size=len(data))
    return Layer(descriptor=blob, diff_id=digests.of_bytes(data), unpacked_size=len(data), title=title)


@pytest.fixture
def toy() -> Iterator[Toy]:
    """A registry on loopback, with the layer's blob."""
    with toyregistry.serving() as found:
        found.put(DATA)
        yield found


@contextmanager
def at(host: str, repository: str = REPOSITORY) -> Iterator[Registry]:
    """A client that may write; nobody waits."""
    place = destination(f"{host}/{repository}")
    scopes = (f"repository:{repository}:pull,push",)
    with connected(place, {"NETRC": "/nonexistent"}, lambda _seconds: None, scopes=scopes) as registry:
        yield registry


def test_what_is_recorded_is_found(toy: Toy) -> None:
    """By key, with all that an image needs to know of a layer; a key that nobody recorded is not."""
    with at(toy.host) as registry:
        assert layerindex.lookup(registry, [KEY, OTHER]) == {}
        assert layerindex.record(registry, KEY, layer())
        assert layerindex.lookup(registry, [KEY, OTHER]) == {KEY: layer()}


def test_an_entry_is_an_artifact_with_an_empty_config(toy: Toy) -> None:
    """As image-spec 1.1 has them, so that other tools can tell what it is, and collectors keep the blob."""
    with at(toy.host) as registry:
        layerindex.record(registry, KEY, layer())
    media_type, data = toy.manifests[f"layer-{KEY}"]
    found = json.loads(data)
    assert media_type == found["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert found["config"]["mediaType"] == "application/vnd.oci.empty.v1+json"
    assert found["config"]["digest"] == "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert toy.blobs[found["config"]["digest"]] == b"{}"
    assert found["artifactType"]
    assert found["layers"] == [layer().descriptor.to_json()]


def test_nothing_is_written_that_is_there(toy: Toy) -> None:
    """Neither the tag, which a registry may have made immutable, nor the config; another layer takes the place."""
    other = toy.put(tar({"opt/two": b"2"}))
    with at(toy.host) as registry:
        assert layerindex.record_all(registry, {KEY: layer(), OTHER: layer()}) == 2
        written = list(toy.log)
        assert layerindex.record_all(registry, {KEY: layer(), OTHER: layer()}) == 0
        assert toy.log == written
        assert layerindex.record(registry, KEY, layer(toy.blobs[other]))
        assert layerindex.lookup(registry, [KEY]) == {KEY: layer(toy.blobs[other])}


def test_a_layer_that_is_not_there_gets_no_entry(toy: Toy) -> None:
    """The registry refuses it, and that is an error."""
    with at(toy.host) as registry, pytest.raises(FetchError, match="MANIFEST_BLOB_UNKNOWN"):
        layerindex.record(registry, KEY, layer(b"elsewhere" * 200))


def said(**changed: Any) -> dict[str, Any]:  # noqa: ANN401  JSON
    """An entry as JSON; `blob` and `annotations` are changed by part, and None takes a part away."""
    found = json.loads(layerindex.entry(KEY, layer()))
    for name, value in changed.items():
        place = {"blob": found["layers"][0], "annotations": found["annotations"]}.get(name)
        if place is not None:
            place |= value
        else:
            found[name] = value
    return {name: value for name, value in found.items() if value is not None}


def written(document: Mapping[str, Any]) -> bytes:
    """As an entry is written."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


ANNOTATION = "org.torchkiln.layer."
HOSTILE: Mapping[str, dict[str, Any]] = {
    "of another key": said(annotations={f"{ANNOTATION}key": OTHER}),
    "an index": said(mediaType=INDEX_TYPE),
    "of another schema": said(schemaVersion=1),
    "an image": said(config={"mediaType": CONFIG_TYPE, "digest": digests.of_bytes(b"{}"), "size": 2}),
    "another kind of artifact": said(artifactType="application/vnd.example"),
    "no artifact": said(artifactType=None),
    "with no layer": said(layers=[]),
    "with two layers": said(layers=[layer().descriptor.to_json()] * 2),
    "a layer of another type": said(blob={"mediaType": "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"}),
    "a layer that lies elsewhere": said(blob={"urls": ["http://example.com"]}),
    "a layer with annotations": said(blob={"annotations": {"a": "b"}}),
    "no digest": said(blob={"digest": "sha256:../../etc/passwd"}),
    "another algorithm": said(blob={"digest": "sha512:" + "0" * 128}),
    "an empty layer": said(blob={"size": 0}),
    "a negative size": said(blob={"size": -1}),
    "a size as text": said(blob={"size": str(len(DATA))}),
    "a size that is a word": said(blob={"size": True}),
    "a broken size": said(blob={"size": len(DATA) + 0.5}),
    "an infinite size": said(blob={"size": float("inf")}),
    "a size that no blob has": said(blob={"size": 1 << 60}),
    "unpacked to what no disk holds": said(annotations={f"{ANNOTATION}unpacked-size": str(1 << 60)}),
    "unpacked to nothing": said(annotations={f"{ANNOTATION}unpacked-size": "0"}),
    "unpacked to less": said(annotations={f"{ANNOTATION}unpacked-size": "-1024"}),
    "a size in other digits": said(annotations={f"{ANNOTATION}unpacked-size": "١٠٢٤"}),
    "a size with a sign": said(annotations={f"{ANNOTATION}unpacked-size": "+1024"}),
    "no diff_id": said(annotations={f"{ANNOTATION}diff-id": "sha256:0"}),
    "a title that moves the cursor": said(annotations={f"{ANNOTATION}title": "torch\x1b[2J"}),
    "a title that is half a letter": said(annotations={f"{ANNOTATION}title": "\ud800"}),
    "a title that is no text": said(annotations={f"{ANNOTATION}title": ["torch"]}),
    "an endless title": said(annotations={f"{ANNOTATION}title": "t" * 600}),
    "more than we write": said(annotations={"org.example": "more"}),
    "with a subject": said(subject=layer().descriptor.to_json()),
    "without annotations": said() | {"annotations": None},
}


@pytest.mark.parametrize("document", HOSTILE.values(), ids=HOSTILE.keys())
def test_an_entry_of_another_form_is_none(document: dict[str, Any]) -> None:
    """Whatever is not exactly what `record` writes for that key is refused, before anything in it is believed."""
    assert layerindex.parse(written(said()), KEY) == layer()
    with pytest.raises(ImageError):
        layerindex.parse(written(document), KEY)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b'"layers"',
        b"[" * 9000,
        layerindex.entry(KEY, layer()) + b" ",
        layerindex.entry(KEY, layer()).replace(b'"schemaVersion":2', b'"schemaVersion":2,"schemaVersion":2'),
    ],
)
def test_bytes_of_another_form_are_no_entry(data: bytes) -> None:
    """Not JSON, not an object, nested without end, or our own said in another way."""
    with pytest.raises(ImageError):
        layerindex.parse(data, KEY)


def test_what_is_no_entry_is_told_and_left_out(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    """A manifest without end is not read to its end; the others are found all the same."""
    with at(toy.host) as registry:
        layerindex.record_all(registry, {KEY: layer(), OTHER: layer()})
        media_type, data = toy.manifests[f"layer-{KEY}"]
        toy.manifests[f"layer-{KEY}"] = media_type, data + b" " * (8 << 20)
        assert layerindex.lookup(registry, [KEY, OTHER]) == {OTHER: layer()}
    assert f"layer-{KEY} is not used: more than" in capsys.readouterr().err


@pytest.mark.parametrize("status", ["500", "401", "403"])
def test_a_registry_that_cannot_be_asked_is_an_error(toy: Toy, status: str) -> None:
    """It is not the same as one that has nothing: what would be made instead may take long."""
    toy.faults[f"layer-{KEY}"] = [status] * 9
    with at(toy.host) as registry, pytest.raises(FetchError):
        layerindex.lookup(registry, [KEY])


def test_a_registry_that_stumbles_is_asked_again(toy: Toy) -> None:
    """As for everything else there."""
    with at(toy.host) as registry:
        layerindex.record(registry, KEY, layer())
        toy.faults[f"layer-{KEY}"] = ["503", "cut", "429"]
        assert layerindex.lookup(registry, [KEY]) == {KEY: layer()}


def test_a_registry_that_takes_no_such_tags_is_an_error(toy: Toy) -> None:
    """Of the kind that the session was made with."""
    toy.faults["name"] = ["400"]
    with at(toy.host) as registry:
        registry.failure = PushError
        with pytest.raises(PushError):
            layerindex.record(registry, KEY, layer())


@pytest.mark.parametrize("key", ["", "wheel", f"wheel-{'0' * 63}", f"wheel-{'0' * 64}/../x", f"wheel-{'0' * 64}\n"])
def test_only_keys_become_tags(key: str) -> None:
    """A tag is part of an address."""
    with pytest.raises(PlanError):
        layerindex.tag(key)


def test_a_key_with_a_compression_fits_into_a_tag() -> None:
    """Of 128 letters at most (distribution-spec, "Pulling manifests")."""
    assert len(layerindex.tag(f"environment-{'0' * 64}.zstd-19-1")) <= 128
    assert len(layerindex.tag(f"together-3.14.0rc1-{'0' * 64}")) <= 128


@pytest.mark.registry
def test_a_real_registry_has_an_index() -> None:
    """It takes such manifests and serves them, and skopeo reads them."""
    novel = tar({"etc/new": os.urandom(1 << 10)})
    one, repository = layer(novel), "torchkiln-test/index"
    key = f"wheel-{one.diff_id.removeprefix('sha256:')}"
    with at(os.environ["TORCHKILN_TEST_REGISTRY"], repository) as registry, pytest.raises(FetchError):
        layerindex.record(registry, key, one)
    with at(os.environ["TORCHKILN_TEST_REGISTRY"], repository) as registry:
        assert layerindex.lookup(registry, [key]) == {}
        send(registry, one.descriptor, lambda start, stop: iter((novel[start:stop],)))
        assert layerindex.record(registry, key, one)
        assert not layerindex.record(registry, key, one)
        assert layerindex.lookup(registry, [key, OTHER]) == {key: one}
        place = f"docker://{registry.where}:{layerindex.tag(key)}"
    command = ["skopeo", "inspect", "--raw", "--tls-verify=false", place]
    assert subprocess.run(command, check=True, capture_output=True).stdout == layerindex.entry(key, one)
