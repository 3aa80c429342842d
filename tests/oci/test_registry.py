"""A registry is asked for exactly the pinned bytes, and nothing that it says is believed."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import socket
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING

import httpx
import pytest

from tests import toyregistry
from tests.dripping import PATIENCE
from tests.toyregistry import Toy, tar
from torchkiln import network
from torchkiln.errors import FetchError, HashMismatchError, HostError, ImageError, TorchkilnError
from torchkiln.oci import answer, naming, reference, registry, session
from torchkiln.oci import digest as digests
from torchkiln.oci import pull as pulling
from torchkiln.oci.image import (
    CONFIG_TYPE,
    LAYER_TYPE,
    MANIFEST_TYPE,
    PLAIN_TYPE,
    ZSTD_TYPE,
    Config,
    Descriptor,
    Image,
    Layer,
)
from torchkiln.oci.pull import Pulled, pull
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

ONE, TWO = tar({"etc/one": b"1" * 5000}), tar({"etc/two": random.Random(1).randbytes(400_000)})  # noqa: S311  no secret
DOCKER = "application/vnd.docker."


@pytest.fixture
def toy() -> Iterator[Toy]:
    """A registry on loopback."""
    with toyregistry.serving() as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Where layers go."""
    return Store(tmp_path / "store")


def pulled(
    toy: Toy, store: Store, digest: str, *, netrc: Path | None = None, waits: list[float] | None = None
) -> Pulled:
    """What a pull gives; waiting is noted, not done."""
    environment = {"NETRC": str(netrc or "/nonexistent")}
    noted = [] if waits is None else waits
    return pull(toy.at(digest), store, machine="x86_64", environment=environment, sleep=noted.append)


def blob(data: bytes) -> str:
    """The digest of a gzipped layer."""
    return digests.of_bytes(gzip.compress(data, mtime=0))


def empty(store: Store) -> bool:
    """Whether no part of a blob is left."""
    return not store.blobs.exists() or not [path for path in store.blobs.iterdir() if path.name.startswith(".")]


def test_layers_lie_in_the_store_as_they_were_served(toy: Toy, store: Store) -> None:
    """Same bytes, measured; Docker's own names of forms become OCI's; a second pull asks for no layer."""
    config = {"config": {"Env": ["A=b"]}}
    docker = {"mediaType": f"{DOCKER}distribution.manifest.v2+json"}
    for layer_type, manifest in (
        (LAYER_TYPE, {}),
        (ZSTD_TYPE, {}),
        (f"{DOCKER}image.rootfs.diff.tar.gzip", docker),
        (PLAIN_TYPE, {}),
    ):
        found = pulled(toy, store, toy.add(ONE, TWO, layer_type=layer_type, config=config, manifest=manifest)).image
        assert found.config.env == {"A": "b"}
        assert [layer.diff_id for layer in found.layers] == [digests.of_bytes(ONE), digests.of_bytes(TWO)]
        assert [layer.unpacked_size for layer in found.layers] == [len(ONE), len(TWO)]
        assert {layer.descriptor.media_type for layer in found.layers} <= {LAYER_TYPE, PLAIN_TYPE, ZSTD_TYPE}
        assert all(store.has(layer.descriptor) for layer in found.layers)
    toy.asked.clear()
    pulled(toy, store, toy.add(ONE, TWO))
    assert len(toy.asked) == 2  # the manifest and the config


def test_an_index_leads_to_the_image_for_the_machine(toy: Toy, store: Store) -> None:
    """Other machines' images and notes about images are passed over; none and two are errors."""
    ours, other = toy.add(ONE), toy.add(TWO, config={"architecture": "arm64"})
    found = pulled(toy, store, toy.index({"arm64": other, "amd64": ours, "unknown": ours}))
    assert [layer.diff_id for layer in found.image.layers] == [digests.of_bytes(ONE)]
    with pytest.raises(ImageError, match="0 images for linux/amd64"):
        pulled(toy, store, toy.index({"arm64": other}))
    with pytest.raises(ImageError, match="it is for linux/arm64, not linux/amd64"):
        pulled(toy, store, toy.index({"amd64": other}))


@pytest.mark.parametrize(
    ("manifest", "config", "said"),
    [
        ({"mediaType": f"{DOCKER}distribution.manifest.v1+prettyjws"}, {}, "a manifest of type"),
        ({"mediaType": "text/plain"}, {}, "a manifest of type text/plain"),
        ({"layers": "many"}, {}, "not an image manifest"),
        ({}, {"architecture": "arm64"}, "it is for linux/arm64"),
        ({}, {"os": "windows"}, "it is for windows/amd64"),
        ({}, {"rootfs": {"diff_ids": []}}, "1 layers and 0 diff_ids"),
    ],
)
def test_what_is_no_image_for_the_machine_is_refused(
    toy: Toy, store: Store, manifest: dict[str, str], config: dict[str, str], said: str
) -> None:
    """Before any layer is asked for."""
    with pytest.raises(ImageError, match=re.escape(said)):
        pulled(toy, store, toy.add(ONE, manifest=manifest, config=config))
    assert not [path for path, _ in toy.asked if path.endswith(blob(ONE))]


@pytest.mark.parametrize(
    "layer_type",
    [f"{DOCKER}image.rootfs.diff.tar.zstd", f"{DOCKER}image.rootfs.foreign.diff.tar.gzip", "text/plain"],
)
def test_layers_of_other_forms_are_refused(toy: Toy, store: Store, layer_type: str) -> None:
    """Neither layers that lie elsewhere, nor what nobody knows."""
    with pytest.raises(ImageError, match=re.escape(f"layer 0 is {layer_type}")):
        pulled(toy, store, toy.add(ONE, layer_type=layer_type))


def test_what_is_both_an_image_and_an_index_is_refused(toy: Toy, store: Store) -> None:
    """By the type that it is served as, the same digest would be two images."""
    one, other = toy.add(ONE), toy.add(TWO)
    index = json.loads(toy.manifests[toy.index({"amd64": other})][1])
    both = {**json.loads(toy.manifests[one][1]), "manifests": index["manifests"]}
    for media_type in (MANIFEST_TYPE, index["mediaType"]):
        data = json.dumps({name: value for name, value in both.items() if name != "mediaType"}).encode()
        toy.manifests[digests.of_bytes(data)] = (media_type, data)
        with pytest.raises(ImageError, match="also something else"):
            pulled(toy, store, digests.of_bytes(data))


def test_docker_manifests_have_no_zstd(toy: Toy, store: Store) -> None:
    """Their media types know none, so engines read such an image each in its own way: refused, nothing asked for."""
    docker = {"mediaType": f"{DOCKER}distribution.manifest.v2+json"}
    with pytest.raises(ImageError, match=re.escape(f"layer 0 is {ZSTD_TYPE}, in a {docker['mediaType']}")):
        pulled(toy, store, toy.add(ONE, layer_type=ZSTD_TYPE, manifest=docker))
    assert [path for path, _ in toy.asked if "/blobs/" in path] == [toy.asked[-1][0]]  # the config


@pytest.mark.parametrize("layer_type", [LAYER_TYPE, ZSTD_TYPE])
def test_a_bomb_is_refused(toy: Toy, store: Store, monkeypatch: pytest.MonkeyPatch, layer_type: str) -> None:
    """A small blob that unpacks to more than any layer is given up there, in either form."""
    monkeypatch.setattr(pulling, "LARGEST_TAR", 50 << 20)
    with pytest.raises(ImageError, match="unpacks to more than"):
        pulled(toy, store, toy.add(tar({"bomb": bytes(64 << 20)}), layer_type=layer_type))


@pytest.mark.parametrize("size", [0, -1, 1 << 40])
def test_sizes_that_no_layer_has_are_refused(toy: Toy, store: Store, size: int) -> None:
    """A size is checked before a byte is asked for."""
    layer = {"mediaType": LAYER_TYPE, "digest": "sha256:" + "a" * 64, "size": size}
    with pytest.raises(ImageError, match=f"has {size} bytes"):
        pulled(toy, store, toy.add(ONE, manifest={"layers": [layer]}))


def test_documents_are_bounded(toy: Toy, store: Store) -> None:
    """A manifest or config larger than any is not read to its end."""
    with pytest.raises(ImageError, match="more than"):
        pulled(toy, store, toy.add(ONE, manifest={"annotations": {"x": "x" * answer.LARGEST_MANIFEST}}))
    huge = {"mediaType": CONFIG_TYPE, "digest": "sha256:" + "a" * 64, "size": 1 << 30}
    with pytest.raises(ImageError, match="more than"):
        pulled(toy, store, toy.add(ONE, manifest={"config": huge}))


@pytest.mark.parametrize("fault", ["other", "longer"])
@pytest.mark.parametrize("which", ["manifest", "config", "layer"])
def test_other_bytes_are_refused_and_not_kept(toy: Toy, store: Store, which: str, fault: str) -> None:
    """A registry that serves something else under a digest is an error at once, whatever it is asked for."""
    digest = toy.add(ONE)
    config = json.loads(toy.manifests[digest][1])["config"]["digest"]
    toy.faults[{"manifest": digest, "config": config, "layer": blob(ONE)}[which]] = [fault] * 9
    with pytest.raises((HashMismatchError, ImageError)):
        pulled(toy, store, digest)
    assert empty(store)
    assert not store.path(digests.parse(blob(ONE))).exists()


def test_a_layer_must_unpack_to_what_the_config_states(toy: Toy, store: Store) -> None:
    """The digest of the compressed bytes proves nothing about the tar; a lie costs no blob that other images have."""
    good = pulled(toy, store, toy.add(ONE)).image
    digest = toy.add(ONE, config={"rootfs": {"diff_ids": [digests.of_bytes(TWO)]}})
    with pytest.raises(HashMismatchError, match="the config states") as raised:
        pulled(toy, store, digest)
    assert toy.host in raised.value.where
    assert store.has(good.layers[0].descriptor)


@pytest.mark.parametrize("layer_type", [LAYER_TYPE, ZSTD_TYPE, PLAIN_TYPE])
def test_a_blob_that_has_rotted_here_is_brought_again(toy: Toy, store: Store, layer_type: str) -> None:
    """Whatever its bytes became, at their number: seen when it is read, and mended by the same pull."""
    digest = toy.add(TWO, ONE, layer_type=layer_type)
    rotten, sound = (layer.descriptor for layer in pulled(toy, store, digest).image.layers)
    good = store.read(rotten.digest)
    for bad in (good[:-9] + bytes(9), good[: len(good) // 2] + b"x" * (len(good) - len(good) // 2), bytes(len(good))):
        store.path(rotten.digest).write_bytes(bad)
        toy.asked.clear()
        pulled(toy, store, digest)
        assert store.read(rotten.digest) == good
        assert not [path for path, _ in toy.asked if path.endswith(sound.digest)]
    store.path(rotten.digest).write_bytes(bytes(len(good)))
    toy.faults[rotten.digest] = ["other"]
    with pytest.raises(HashMismatchError, match="the registry serves"):
        pulled(toy, store, digest)
    pulled(toy, store, digest)


def test_what_is_no_layer_is_not_fetched_twice(toy: Toy, store: Store) -> None:
    """A blob that is what its digest says, and damaged before that was reckoned: each pull says so."""
    digest = toy.add(ONE)
    listed = json.loads(toy.manifests[digest][1])
    bad = gzip.compress(ONE, mtime=0)[:-6] + bytes(6)
    listed["layers"][0].update(digest=toy.put(bad), size=len(bad))
    for _ in range(2):
        with pytest.raises(ImageError, match="the compressed layer is damaged"):
            pulled(toy, store, toy.name(listed))
    assert len([path for path, _ in toy.asked if path.endswith(digests.of_bytes(bad))]) == 1


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_connection_is_taken_up(toy: Toy, store: Store, *, ranges: bool) -> None:
    """From where it broke if the registry can; else from the beginning, without writing anything twice."""
    toy.ranges = ranges
    digest = toy.add(TWO)
    layer = blob(TWO)
    toy.faults[layer] = ["cut", "503", "cut"]
    found = pulled(toy, store, digest)
    assert [one.diff_id for one in found.image.layers] == [digests.of_bytes(TWO)]
    asked = [wanted for path, wanted in toy.asked if path.endswith(layer)]
    assert len(asked) == 4
    assert asked[1].startswith("bytes=")


@pytest.mark.parametrize("faults", [["open"], ["cut", "whole"], ["cut", "open"]])
def test_an_answer_that_is_not_what_was_asked_for_is_no_damage(toy: Toy, store: Store, faults: list[str]) -> None:
    """One that breaks off behind the last byte, or begins elsewhere than it should: the blob is whole all the same."""
    digest = toy.add(TWO)
    toy.faults[blob(TWO)] = list(faults)
    assert pulled(toy, store, digest).image.layers[0].descriptor.digest == blob(TWO)
    assert toy.faults[blob(TWO)] == []


def test_a_registry_that_fails_is_asked_again_and_then_told(toy: Toy, store: Store) -> None:
    """Patience has an end, Retry-After is honoured, and 404 is believed at once."""
    digest = toy.add(ONE)
    waits: list[float] = []
    toy.faults[digest] = ["429", "500", "502"]
    pulled(toy, store, digest, waits=waits)
    assert waits == [7, 1, 2]
    toy.faults[digest] = ["503"] * session.TRIES
    with pytest.raises(FetchError, match="503"):
        pulled(toy, store, digest)
    with pytest.raises(FetchError, match="404"):
        pulled(toy, store, "sha256:" + "c" * 64)


@pytest.mark.parametrize("what", ["manifest", "config", "layer", "token"])
def test_a_registry_that_never_stops_and_never_ends_is_told(
    toy: Toy, store: Store, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A byte now and then is no answer, and no progress: neither of headers, a document, a token nor a blob."""
    monkeypatch.setattr(network, "TIMEOUT", PATIENCE)
    digest = toy.add(TWO)
    config = json.loads(toy.manifests[digest][1])["config"]["digest"]
    toy.tokens = what == "token"
    fault = "trickle" if what == "layer" else "drip"
    toy.faults[{"manifest": digest, "config": config, "layer": blob(TWO), "token": what}[what]] = [fault] * 99
    with pytest.raises(FetchError, match=r"bytes came in 0\.3 seconds"):
        pulled(toy, store, digest)
    assert empty(store)


def test_a_transfer_that_stalls_is_taken_up(toy: Toy, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that breaks: from where it is."""
    monkeypatch.setattr(network, "TIMEOUT", PATIENCE)
    digest = toy.add(TWO)
    toy.faults[blob(TWO)] = ["trickle"]
    assert pulled(toy, store, digest).image.layers[0].descriptor.digest == blob(TWO)
    first, *_, last = [wanted for path, wanted in toy.asked if path.endswith(blob(TWO))]
    assert (first, last.startswith("bytes=")) == ("", True)


@pytest.mark.parametrize("name", ["team/base:nope", "team/base@sha256:" + "c" * 64])
def test_an_image_that_is_not_there_is_told_in_words(toy: Toy, store: Store, name: str) -> None:
    """Which registry has no image of which name, and what to try; by tag or by digest."""
    text, nobody = f"{toy.host}/{name}", {"NETRC": "/nonexistent"}
    with pytest.raises(FetchError, match=f"^{re.escape(f'{toy.host} has no image {name} (404')}") as raised:
        pull(naming.pinned(text, environment=nobody), store, machine="x86_64", environment=nobody)
    assert "compare repository and tag" in raised.value.remedy
    assert f"docker login {toy.host}" in raised.value.remedy


def test_only_what_has_arrived_is_said_to_be_kept(toy: Toy, store: Store) -> None:
    """A registry that was never reached has given nothing; layers that are whole are not fetched again."""
    digest = toy.add(ONE, TWO)
    toy.faults[digest] = ["503"] * session.TRIES
    with pytest.raises(FetchError) as raised:
        pulled(toy, store, digest)
    assert raised.value.remedy.endswith("then run it again")
    toy.faults[blob(ONE)] = ["503"] * session.TRIES
    with registry.connected(reference.parse(toy.at(digest)), {"NETRC": "/nonexistent"}, lambda _: None) as found:
        first, second = (Descriptor.from_json(layer) for layer in json.loads(toy.manifests[digest][1])["layers"])
        found.blob(second, store)
        with pytest.raises(FetchError) as raised:
            found.blob(first, store)
    assert raised.value.remedy.endswith("then run it again: what has arrived is kept")


def test_credentials_of_netrc_are_used(toy: Toy, store: Store, tmp_path: Path) -> None:
    """As they are, or for a token that is renewed when it expires; without them the remedy names the file."""
    digest = toy.add(ONE, TWO)
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password word\n")
    toy.password = "word"  # noqa: S105  a toy's
    for tokens in (False, True):
        toy.tokens = tokens
        with pytest.raises(FetchError, match="refuses") as raised:
            pulled(toy, store, digest)
        assert "netrc" in raised.value.remedy
        assert pulled(toy, store, digest, netrc=netrc).image.layers
    with registry.connected(reference.parse(toy.at(digest)), {"NETRC": str(netrc)}) as client:
        client.manifest(digests.parse(digest))
        toy.expired.add("Bearer good0")
        client.manifest(digests.parse(digest))
        assert client.token == "good1"  # noqa: S105
        assert "good" not in repr(client)


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize(
    ("config", "told"),
    [
        ('{"auths": {"HOST": {"auth": "dXNlcjpzZWNyZXQ="}}}', "the credentials from FILE were refused"),
        ('{"auths": {}}', "no credentials for HOST were found in FILE or netrc"),
        ("", "no credentials for HOST were found in FILE (there is no such file) or netrc"),
        ('{"auths"', "FILE gives no credentials for HOST: it can't be read, since it is no JSON; netrc has none"),
    ],
)
def test_a_refusal_says_whose_credentials_were_shown(
    toy: Toy, tmp_path: Path, config: str, told: str, *, tokens: bool
) -> None:
    """Wrong ones, none, and a file that can't be read are told apart; no password is shown."""
    digest, file = toy.add(ONE), tmp_path / "config.json"
    toy.password, toy.tokens = "word", tokens
    if config:
        file.write_text(config.replace("HOST", toy.host))
    environment = {"NETRC": "/nonexistent", "DOCKER_CONFIG": str(tmp_path)}
    with (
        registry.connected(reference.parse(toy.at(digest)), environment) as client,
        pytest.raises(FetchError, match=r"the registry refuses: 40[13]") as raised,
    ):
        client.manifest(digests.parse(digest))
    assert raised.value.what.endswith("; " + told.replace("HOST", toy.host).replace("FILE", str(file)))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("realm", "said"), [("http://example.org/token", "plain HTTP"), ("https://x:y/token", "no place")]
)
def test_a_token_is_never_asked_for_in_the_clear(toy: Toy, store: Store, realm: str, said: str) -> None:
    """A registry that sends its client to another host by plain HTTP, or nowhere, gets no password."""
    toy.tokens, toy.realm = True, realm
    with pytest.raises(FetchError, match=said):
        pulled(toy, store, toy.add(ONE))


def test_a_registry_that_leads_in_circles_is_told(toy: Toy, store: Store) -> None:
    """Redirects end, as patience does."""
    digest = toy.add(ONE)
    toy.faults[digest] = ["astray"] * 1000
    with pytest.raises(FetchError, match="redirects"):
        pulled(toy, store, digest)


def asked_of(
    answers: Mapping[str, httpx.Response], netrc: Path, **environment: str
) -> tuple[list[tuple[str, str]], TorchkilnError]:
    """Ask a registry elsewhere for a manifest: which hosts were asked, with what kind of credentials; and the error."""
    seen: list[tuple[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.host, request.headers.get("Authorization", "").partition(" ")[0]))
        return answers[request.url.host]

    digest = digests.of_bytes(b"")
    image = reference.parse(f"one.example/x@{digest}")
    with registry.connected(image, {"NETRC": str(netrc), **environment}, sleep=lambda _seconds: None) as found:
        found.client._mounts.clear()  # a proxy of this machine would otherwise take the requests
        found.client._transport = httpx.MockTransport(answer)
        with pytest.raises(TorchkilnError) as raised:
            found.manifest(digest)
    return seen, raised.value


def challenge(realm: str) -> httpx.Response:
    """An answer that sends its client away for a token."""
    return httpx.Response(401, headers={"WWW-Authenticate": f'bearer realm="{realm}",service="x"'})


def test_credentials_of_another_host_never_become_a_token(tmp_path: Path) -> None:
    """A registry that names a host of the user's as its place for tokens would be shown what that host answers."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine two.example login me password mine\n")
    answers = {
        "one.example": challenge("https://two.example/t"),
        "two.example": httpx.Response(200, stream=httpx.ByteStream(b'{"token": "a b"}')),
    }
    seen, error = asked_of(answers, netrc)
    assert seen == [("one.example", ""), ("two.example", "")]
    assert "no token" in str(error)
    assert "a b" not in str(error)


@pytest.mark.parametrize("place", ["http://127.0.0.1:9/t", "https://localhost/t", "http://[::1]/t"])
def test_no_registry_elsewhere_leads_to_this_machine(tmp_path: Path, place: str) -> None:
    """Neither for a token nor by a redirect: what listens here alone may trust whoever asks."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine one.example login me password mine\n")
    seen, error = asked_of({"one.example": challenge(place)}, netrc)
    assert seen == [("one.example", "")]
    assert "leads to this machine" in str(error)
    here = {httpx.URL(place).host: httpx.Response(200)}
    redirects = {"one.example": httpx.Response(307, headers={"Location": place})}
    seen, error = asked_of(redirects | here, netrc)
    assert seen == [("one.example", "")]
    assert "leads to this machine" in str(error)


def test_a_refresh_token_is_for_the_place_that_is_named(tmp_path: Path) -> None:
    """What `docker login` keeps does not follow a redirect, which would send it on whole."""
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"one.example": {"identitytoken": "secret"}}}))
    answers = {
        "one.example": challenge("https://two.example/t"),
        "two.example": httpx.Response(307, headers={"Location": "https://three.example/"}),
    }
    seen, error = asked_of(answers, tmp_path / "none", DOCKER_CONFIG=str(tmp_path))
    assert [host for host, _ in seen] == ["one.example", "two.example"]
    assert "307" in str(error)


def test_an_upload_elsewhere_is_shown_no_credentials(tmp_path: Path) -> None:
    """A registry may name any address to send bytes to, also one of a host that the user has a password for."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine two.example login me password mine\n")
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("Authorization", ""))
        return httpx.Response(200)

    with registry.connected(reference.parse(f"one.example/x@{digests.of_bytes(b'')}"), {"NETRC": str(netrc)}) as found:
        found.client._mounts.clear()
        found.client._transport = httpx.MockTransport(answer)
        with found.ask("PUT", "https://two.example/upload", content=b"x"):
            pass
        with pytest.raises(FetchError, match="leads to this machine"), found.ask("PUT", "http://127.0.0.1/upload"):
            pass
    assert seen == [""]


@pytest.mark.parametrize("content", [b"xyz", lambda: iter([b"x", b"yz"])])
def test_an_upload_that_is_led_elsewhere_shows_no_credentials(tmp_path: Path, content: session.Content) -> None:
    """What is sent is the same, from its beginning; who sends it is told to none but the registry."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine one.example login me password mine\nmachine two.example login me password mine\n")
    seen: list[tuple[str, str, bytes]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        kind = request.headers.get("Authorization", "").partition(" ")[0]
        seen.append((request.url.host, kind, request.read()))
        if request.url.host == "two.example":
            return httpx.Response(201)
        return httpx.Response(307, headers={"Location": "https://two.example/upload"})

    with registry.connected(reference.parse(f"one.example/x@{digests.of_bytes(b'')}"), {"NETRC": str(netrc)}) as found:
        found._basic = "Basic bWU6bWluZQ=="
        found.client._mounts.clear()
        found.client._transport = httpx.MockTransport(answer)
        headers = {"Content-Length": "3"}
        with found.ask("PATCH", "https://one.example/upload", headers, content=content, good={201}) as response:
            assert response.url.host == "two.example"
    assert seen == [("one.example", "Basic", b"xyz"), ("two.example", "", b"xyz")]


def test_no_hop_on_the_way_is_in_the_clear(tmp_path: Path) -> None:
    """A redirect by plain HTTP isn't followed, even where it would lead back to HTTPS."""
    answers = {
        "one.example": httpx.Response(307, headers={"Location": "http://two.example/"}),
        "two.example": httpx.Response(307, headers={"Location": "https://three.example/"}),
        "three.example": httpx.Response(200),
    }
    seen, error = asked_of(answers, tmp_path / "none")
    assert [host for host, _ in seen] == ["one.example"]
    assert "plain HTTP" in str(error)


class Endless(httpx.SyncByteStream):
    """A body that has no end; how much of it was read."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[bytes]:
        """Pieces, as long as anybody wants them."""
        while self.read < 1 << 30:
            self.read += 1 << 20
            yield bytes(1 << 20)


def test_what_a_redirect_says_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Only where it leads counts: its body would be kept in memory, and may have no end."""
    body = Endless()
    answers = {
        "one.example": httpx.Response(307, headers={"Location": "https://two.example/"}, stream=body),
        "two.example": httpx.Response(404),
    }
    seen, error = asked_of(answers, tmp_path / "none")
    assert ([host for host, _ in seen], body.read) == (["one.example", "two.example"], 1 << 20)
    assert "404" in str(error)


@pytest.mark.parametrize("host", ["one..example", f"{'a' * 64}.example"])
def test_a_name_that_no_host_can_have_is_told(store: Store, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """It can't even be looked up."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with pytest.raises(FetchError, match="no host has such a name"):
        pull(f"{host}/x@{digests.of_bytes(b'')}", store, machine="x86_64", environment={}, sleep=lambda _: None)


def test_a_document_without_an_end_is_an_error(toy: Toy, store: Store) -> None:
    """Lists in lists in lists are no reason to fall over."""
    data = b"[" * 100_000
    toy.manifests[digests.of_bytes(data)] = (MANIFEST_TYPE, data)
    with pytest.raises(ImageError, match="no JSON"):
        pulled(toy, store, digests.of_bytes(data))


@pytest.mark.registry
def test_a_real_registry(store: Store, tmp_path: Path) -> None:
    """What skopeo pushed into docker-registry comes back layer by layer; its schema 2 form too."""
    host = os.environ["TORCHKILN_TEST_REGISTRY"]
    ours = Store(tmp_path / "ours")
    layers = []
    for data in (ONE, TWO):
        packed = ours.put(gzip.compress(data, mtime=0), LAYER_TYPE)
        layers.append(Layer(descriptor=packed, diff_id=digests.of_bytes(data), unpacked_size=len(data)))
    ours.put_image(Image(config=Config(env={"A": "b"}), layers=tuple(layers)), "toy")
    for form in ("oci", "v2s2"):
        name = f"{host}/torchkiln-test/pull-{form}"
        options = ["--quiet", "--dest-tls-verify=false", "--format", form, "--digestfile", str(tmp_path / "digest")]
        subprocess.run(["skopeo", "copy", *options, f"oci:{ours.root}:toy", f"docker://{name}:1"], check=True)
        digest = (tmp_path / "digest").read_text()
        found = pull(f"{name}@{digest}", store, machine="x86_64", environment={}).image
        assert found.layers == tuple(layers)
        assert found.config.env == {"A": "b"}


def test_every_error_says_where(toy: Toy, store: Store) -> None:
    """The registry and repository are in each message, so that a family of images stays readable."""
    digest = toy.add(ONE)
    toy.faults[digest] = ["404"]
    with pytest.raises(TorchkilnError) as raised:
        pulled(toy, store, digest)
    assert toy.host in raised.value.where


def test_a_full_disk_is_told_and_nothing_half_is_left(
    toy: Toy, full_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before layers are asked for if their sizes say so, else when it happens; other layers stay for another run."""
    store, small, large = Store(full_disk / "store"), tar({"a": b"b"}), random.Random(1).randbytes(50 << 20)  # noqa: S311
    digest = toy.add(small, tar({"large": large}), layer_type=PLAIN_TYPE)
    with pytest.raises(HostError, match=r"no room for the layers: 52\.4 MB are needed, 41\.9 MB are free"):
        pulled(toy, store, digest)
    assert list(store.blobs.iterdir()) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 40))
    with pytest.raises(HostError, match="the disk is full while layers are written") as raised:
        pulled(toy, store, digest)
    assert raised.value.where == f"{store.blobs}, on the file system of {full_disk}"
    assert [path.name for path in store.blobs.iterdir()] == [digests.encoded(digests.of_bytes(small))]


def test_a_copy_that_is_too_short_is_told_as_such(toy: Toy, store: Store) -> None:
    """A registry asked to go on after its end answers 416: nothing is wrong with the name."""
    digest = toy.add(ONE)
    toy.blobs[blob(ONE)] = toy.blobs[blob(ONE)][:20]
    with pytest.raises(HashMismatchError, match="shorter than the stated") as raised:
        pulled(toy, store, digest)
    assert "push an image that holds it there again" in raised.value.remedy
    assert empty(store)


def told_of(error: httpx.RequestError) -> str:
    """What is said of a request that ends so each time."""

    def fail(request: httpx.Request) -> httpx.Response:
        error.request = request
        raise error

    image = reference.parse(f"one.example/x@{digests.of_bytes(b'')}")
    with registry.connected(image, {"NETRC": "/nonexistent"}, sleep=lambda _seconds: None) as found:
        found.client._mounts.clear()
        found.client._transport = httpx.MockTransport(fail)
        with pytest.raises(FetchError) as raised:
            found.manifest(image.digest)
    assert raised.value.where == "one.example/x"
    return raised.value.what


def test_the_host_and_port_are_told_that_nobody_is_at(store: Store) -> None:
    """Not which document was wanted there, nor a number of the system's."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else takes it
        host = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(FetchError) as raised:
            pull(f"{host}/x@{digests.of_bytes(b'')}", store, machine="x86_64", environment={}, sleep=lambda _: None)
    assert raised.value.what == f"{host} can't be reached: connection refused"
    unknown = httpx.ConnectError("[Errno -2] Name or service not known")
    assert told_of(unknown) == "one.example:443 can't be reached: name or service not known"
    assert told_of(httpx.ConnectTimeout("")) == "one.example:443 can't be reached: it does not answer"
    assert told_of(httpx.ReadError("broken")).endswith(": broken")
