"""What is pushed arrives whole whatever goes wrong on the way, and a tag never names less."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests import toyregistry
from tests.toyregistry import REPOSITORY, Toy, tar
from torchkiln.errors import HashMismatchError, ImageError, PushError, StoreError, TorchkilnError
from torchkiln.oci import copying, delivery, session, upload
from torchkiln.oci import digest as digests
from torchkiln.oci import push as push_module
from torchkiln.oci.copying import copy
from torchkiln.oci.image import PLAIN_TYPE, Config, Image, Layer, config_bytes, manifest_descriptor
from torchkiln.oci.push import Pushed, push
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SMALL = tar({"etc/one": b"1" * 5000})
LARGE = tar({"etc/two": random.Random(1).randbytes(5 << 20)})  # noqa: S311  no secret
CHUNK = 2 << 20


@pytest.fixture
def toy() -> Iterator[Toy]:
    """A registry on loopback."""
    with toyregistry.serving() as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Where layers lie."""
    return Store(tmp_path / "store")


@pytest.fixture
def image(store: Store) -> Image:
    """Two layers, one of which takes four chunks."""
    return imaged(store, SMALL, LARGE)


def imaged(store: Store, *tars: bytes) -> Image:
    """An image of these layers, as they are: a tar is a layer too."""
    layers = [
        Layer(descriptor=store.put(data, PLAIN_TYPE), diff_id=digests.of_bytes(data), unpacked_size=len(data))
        for data in tars
    ]
    return Image(config=Config(env={"A": "b"}), layers=tuple(layers))


def pushed(toy: Toy, image: Image, store: Store, **given: Any) -> Pushed:  # noqa: ANN401  push's own
    """What a push gives; nobody waits."""
    options: dict[str, Any] = {
        "environment": {"NETRC": "/nonexistent"},
        "sleep": lambda _seconds: None,
        "chunk": CHUNK,
    } | given
    return push(image, store, f"{toy.host}/{REPOSITORY}:one", **options)


def whole(toy: Toy, image: Image) -> bool:
    """Whether the tag names the image, and all of it is there, as it should be."""
    named = digests.of_bytes(toy.manifests["one"][1])
    right = all(digests.of_bytes(data) == digest for digest, data in toy.blobs.items())
    return right and named == manifest_descriptor(image).digest


def untagged(toy: Toy) -> bool:
    """Whether nothing has the tag."""
    return "one" not in toy.manifests


def test_blobs_come_first_and_the_tag_last(toy: Toy, image: Image, store: Store) -> None:
    """Then the manifest by digest; a second push sends no blob."""
    done = pushed(toy, image, store)
    digest = manifest_descriptor(image).digest
    assert whole(toy, image)
    assert toy.log[-2:] == [f"manifest {digest}", "manifest one"]
    assert [entry.split()[0] for entry in toy.log] == ["blob"] * 3 + ["manifest"] * 2
    assert (done.name, done.digest) == (f"{toy.host}/{REPOSITORY}:one", digest)
    assert set(done.blobs.values()) == {"sent"}
    assert done.sent == sum(len(data) for data in toy.blobs.values())
    again = pushed(toy, image, store)
    assert (set(again.blobs.values()), again.sent) == ({"there"}, 0)


def test_a_large_blob_goes_in_chunks(toy: Toy, image: Image, store: Store) -> None:
    """A small one first, for Quay; the last is what is left. A small blob needs no chunk."""
    pushed(toy, image, store)
    assert toy.chunks == [(0, upload.FIRST), (1 << 20, CHUNK), (3 << 20, CHUNK), (5 << 20, len(LARGE) - (5 << 20))]


@pytest.mark.parametrize("least", [3 << 20, 100 << 20])
def test_chunks_are_as_large_as_the_registry_wants(toy: Toy, image: Image, store: Store, least: int) -> None:
    """Where a minimum is stated, no chunk but the last is smaller; what is smaller as a whole needs none."""
    toy.least = least
    pushed(toy, image, store)
    assert whole(toy, image)
    assert all(length >= least for _, length in toy.chunks[:-1])
    assert len(toy.chunks) == (2 if least < len(LARGE) else 0)


@pytest.mark.parametrize(
    ("faults", "chunks"),
    [
        ({"PATCH": ["", "cut"]}, [0, 1 << 20, 2 << 20, 4 << 20]),
        ({"PATCH": ["", "unsaid"]}, [0, 1 << 20, 3 << 20, 5 << 20]),
        ({"PATCH": ["", "416"]}, [0, 1 << 20, 1 << 20, 3 << 20, 5 << 20]),
        ({"PATCH": ["", "500", "", "429", "503"]}, [0, 1 << 20, 1 << 20, 3 << 20, 3 << 20, 3 << 20, 5 << 20]),
        ({"PATCH": ["", "", "lost"]}, [0, 1 << 20, 3 << 20, 0, 1 << 20, 3 << 20, 5 << 20]),
        ({"PATCH": ["", "", "cut"], "status": ["503", "500"]}, [0, 1 << 20, 3 << 20, 4 << 20]),
        ({"PATCH": ["", "", "cut"], "status": ["503"] * 3}, [0, 1 << 20, 3 << 20, 0, 1 << 20, 3 << 20, 5 << 20]),
        ({"PATCH": ["", "", "cut"], "status": ["405"]}, [0, 1 << 20, 3 << 20, 0, 1 << 20, 3 << 20, 5 << 20]),
        ({"PATCH": ["slow"] * 9}, [0, 1 << 20, 3 << 20, 5 << 20]),
        ({"PATCH": ["", "405"]}, [0, 1 << 20]),
    ],
)
def test_an_upload_goes_on_where_the_registry_has_it(
    toy: Toy, image: Image, store: Store, faults: dict[str, list[str]], chunks: list[int]
) -> None:
    """After a reset, a lost answer, 416, 5xx; from the beginning where an upload is lost; whole where none may be."""
    toy.faults.update(faults)
    pushed(toy, image, store)
    assert whole(toy, image)
    assert [start for start, _ in toy.chunks] == chunks


@pytest.mark.parametrize("fault", ["unsaid", "500", "404"])
def test_a_lost_answer_to_the_end_of_an_upload_is_no_loss(toy: Toy, image: Image, store: Store, fault: str) -> None:
    """What has arrived all the same isn't sent again; what has not, is."""
    toy.faults["PUT"] = [fault] * 2
    pushed(toy, image, store)
    assert whole(toy, image)


def test_waiting_is_as_the_registry_says(toy: Toy, image: Image, store: Store) -> None:
    """Retry-After where there is one, else longer each time without progress; the count begins anew with progress."""
    waits: list[float] = []
    toy.faults["PATCH"] = ["", "429", "500", "500", "", "500"]
    pushed(toy, image, store, sleep=waits.append)
    assert waits == [7, 1, 2, 0.5]


@pytest.mark.parametrize(
    ("said", "waited"),
    [
        ("Mon, 01 Jan 2035 00:00:09 GMT", 9),
        ("Mon, 01 Jan 2035 09:00:00 GMT", 60),
        ("Sun, 31 Dec 2034 23:59:59 GMT", 0.5),
        ("soon", 0.5),
        ("120", 60),
    ],
)
def test_waiting_may_be_until_a_date(toy: Toy, image: Image, store: Store, said: str, waited: float) -> None:
    """By the registry's clock, whatever ours says; never long, and as ever where it can't be understood."""
    waits: list[float] = []
    toy.faults["PATCH"], toy.retry = ["", "429"], said
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toyregistry.Handler, "date_time_string", lambda *_: "Mon, 01 Jan 2035 00:00:00 GMT")
        pushed(toy, image, store, sleep=waits.append)
    assert waits == [waited]


@pytest.mark.parametrize(
    "faults",
    [
        {"PATCH": ["500"] * 99},
        {"PATCH": ["cut"] + ["500"] * 99},
        {"POST": ["403"] * 99},
        {"PUT": ["500"] * 99},
        {"name": ["403"] * 99},
        {"name": ["", "500", "500", "500", "500", "500"]},
    ],
)
def test_nothing_incomplete_has_a_tag(toy: Toy, image: Image, store: Store, faults: dict[str, list[str]]) -> None:
    """A registry that goes on failing, or refuses, is an error that says where; another push goes on."""
    toy.faults.update(faults)
    with pytest.raises(PushError) as raised:
        pushed(toy, image, store)
    assert untagged(toy)
    assert raised.value.where == f"{toy.host}/{REPOSITORY}"
    assert raised.value.remedy
    assert "secret" not in str(raised.value)
    toy.faults.clear()
    pushed(toy, image, store)
    assert whole(toy, image)


@pytest.mark.parametrize("faults", [{"PUT": ["other"] * 9}, {"PUT": ["damaged"] * 9}, {"name": ["other"]}])
def test_other_bytes_are_told(toy: Toy, image: Image, store: Store, faults: dict[str, list[str]]) -> None:
    """A registry that names another digest, refuses ours, or has another manifest: no tag is set."""
    toy.faults.update(faults)
    with pytest.raises(HashMismatchError):
        pushed(toy, image, store)
    assert untagged(toy)


def test_a_blob_that_is_damaged_here_is_told(toy: Toy, image: Image, store: Store) -> None:
    """The registry sees it; it isn't sent again and again."""
    path = store.path(image.layers[1].descriptor.digest)
    path.write_bytes(bytes(len(LARGE)))
    with pytest.raises(HashMismatchError, match="other bytes") as raised:
        pushed(toy, image, store)
    assert "verify" in raised.value.remedy
    assert len(toy.chunks) == 4
    path.unlink()
    with pytest.raises(StoreError, match="missing"):
        pushed(toy, image, store)
    assert untagged(toy)


@pytest.mark.parametrize(
    ("where", "faults"),
    [("PATCH", ["", "401", "", "401", "", "401"]), ("PUT", ["", "401"]), ("name", ["401", "", "401"])],
)
def test_a_token_may_run_out_at_any_instant(
    toy: Toy, image: Image, store: Store, tmp_path: Path, *, where: str, faults: list[str]
) -> None:
    """In mid-upload, at the last byte, before the manifest: a new one is got with the same rights, and it goes on."""
    toy.tokens, toy.password = True, "word"
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password word\n")
    toy.faults[where] = faults
    pushed(toy, image, store, environment={"NETRC": str(netrc)}, siblings=["team/other"])
    assert whole(toy, image)
    assert len(toy.scopes) >= 2
    assert {tuple(asked) for asked in toy.scopes} == {
        (f"repository:{REPOSITORY}:pull,push", "repository:team/other:pull")
    }


def test_credentials_that_change_meanwhile_are_found_anew(toy: Toy, image: Image, store: Store, tmp_path: Path) -> None:
    """A helper's passwords may run out with the tokens that they got."""
    toy.tokens, toy.password = True, "word"
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password word\n")
    toy.faults["PATCH"] = ["", "500", "401"]

    def rest(_seconds: float) -> None:
        if toy.faults["PATCH"]:
            toy.password = "new"  # noqa: S105  a toy's
            netrc.write_text("machine 127.0.0.1 login user password new\n")

    pushed(toy, image, store, environment={"NETRC": str(netrc)}, sleep=rest)
    assert whole(toy, image)
    assert len(toy.scopes) >= 2


def test_tokens_that_are_never_good_are_refused(toy: Toy, image: Image, store: Store) -> None:
    """Patience with 401 has an end too."""
    toy.tokens = True
    toy.faults["PATCH"] = ["401"] * 99
    with pytest.raises(PushError, match=r"another token|refuses"):
        pushed(toy, image, store)
    assert untagged(toy)


def test_a_password_is_shown_where_it_is_asked_for(toy: Toy, image: Image, store: Store, tmp_path: Path) -> None:
    """Docker's config has it for this port; without it the remedy names `docker login`, and no secret is told."""
    toy.password = "word"  # noqa: S105  a toy's
    with pytest.raises(PushError, match="refuses") as raised:
        pushed(toy, image, store)
    assert "docker login" in raised.value.remedy
    auths = {toy.host: {"auth": "dXNlcjp3b3Jk"}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    pushed(toy, image, store, environment={"DOCKER_CONFIG": str(tmp_path)})
    assert whole(toy, image)
    toy.password = "other"  # noqa: S105  a toy's
    with pytest.raises(PushError) as raised:
        pushed(toy, image, store, environment={"DOCKER_CONFIG": str(tmp_path)})
    assert "word" not in str(raised.value).replace("password", "")


def test_what_docker_login_got_in_place_of_a_password_gets_tokens(
    toy: Toy, image: Image, store: Store, tmp_path: Path
) -> None:
    """By the other of distribution's two ways; for a push, and again when one runs out."""
    toy.tokens, toy.password, toy.identity = True, "word", "renewable"
    toy.faults["PATCH"] = ["", "401"]
    auths = {toy.host: {"auth": "", "identitytoken": "renewable"}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    pushed(toy, image, store, environment={"DOCKER_CONFIG": str(tmp_path)})
    assert whole(toy, image)
    toy.identity = "other"
    toy.expired.add("Bearer good1.push")
    with pytest.raises(PushError) as raised:
        pushed(toy, image, store, environment={"DOCKER_CONFIG": str(tmp_path)})
    assert "renewable" not in str(raised.value)


def test_uploads_elsewhere_are_shown_no_credentials(toy: Toy, image: Image, store: Store, tmp_path: Path) -> None:
    """A registry may lead uploads to another server, which is not told who we are."""
    toy.password = "word"  # noqa: S105  a toy's
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password word\n")
    with toyregistry.serving() as other:
        other.uploads, other.blobs, toy.away = toy.uploads, toy.blobs, f"http://{other.host}"
        other.faults["PATCH"] = ["", "cut"]
        pushed(toy, image, store, environment={"NETRC": str(netrc)})
        assert other.chunks
        assert {kind for _, kind in other.asked} == {""}
    assert whole(toy, image)
    assert "Basic" in {kind for _, kind in toy.asked}


@pytest.mark.parametrize("fault", ["", "403", "405"])
def test_a_blob_next_door_is_mounted(toy: Toy, image: Image, store: Store, fault: str) -> None:
    """Nothing of it is sent; a registry that refuses gets it sent."""
    toy.others = {digests.of_bytes(LARGE): LARGE, digests.of_bytes(SMALL): SMALL}
    toy.mounts = {"team/other": {digests.of_bytes(LARGE)}}
    toy.faults["mount"] = [fault] * (6 if fault else 0)
    done = pushed(toy, image, store, siblings=["team/nothing", "team/other"])
    assert whole(toy, image)
    how = dict(done.blobs)
    assert how.pop(digests.of_bytes(LARGE)) == ("sent" if fault else "mounted")
    assert set(how.values()) == {"sent"}
    assert bool(toy.chunks) == bool(fault)


def test_a_registry_that_takes_next_to_nothing_is_told(toy: Toy, image: Image, store: Store) -> None:
    """It would be sent the same chunk for ever: a few bytes of it are no progress. Once in a while they end nothing."""
    toy.faults["PATCH"] = ["few", "", "few"]
    pushed(toy, image, store)
    assert whole(toy, image)
    toy.blobs.clear()
    toy.manifests.clear()
    toy.faults["PATCH"] = ["few"] * 999
    with pytest.raises(PushError, match="took 9 bytes of 2097152"):
        pushed(toy, image, store)
    assert untagged(toy)


@pytest.mark.parametrize("status", [307, 308])
def test_an_upload_goes_where_the_registry_leads_it(toy: Toy, image: Image, store: Store, status: int) -> None:
    """Each of its requests, whole, at the first try: what was sent already is sent there from its beginning."""
    waits: list[float] = []
    with toyregistry.at_another_address(toy) as other:
        led = [f"{status} http://{other}"] * 3
        toy.faults |= {"POST": led.copy(), "PATCH": led.copy(), "PUT": led.copy(), "name": led.copy()}
        pushed(toy, image, store, sleep=waits.append)
    assert whole(toy, image)
    assert (waits, [fault for faults in toy.faults.values() for fault in faults]) == ([], [])


@pytest.mark.parametrize("what", ["POST", "PATCH", "PUT", "name"])
def test_an_upload_that_can_not_follow_says_where_it_was_led(toy: Toy, image: Image, store: Store, what: str) -> None:
    """By a redirect that would make a question of it, or into the clear, or in circles."""
    for led, said in (
        ("302 http://one.example", "one.example"),
        ("307 http://one.example", "plain HTTP"),
        ("307 ", ""),
    ):
        toy.faults[what] = [led] * 999
        with pytest.raises(PushError, match=said or "maximum allowed redirects"):
            pushed(toy, image, store)
        assert untagged(toy)


def test_one_failure_ends_all(toy: Toy, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is being sent beside it is given up, not sent to its end."""
    image, failed = imaged(store, SMALL, LARGE), threading.Event()
    original = push_module._stored

    def read(found: Store, digest: digests.Digest, start: int, stop: int) -> Iterator[bytes]:
        if digest == image.layers[0].descriptor.digest:
            failed.set()
            raise StoreError("the disk is gone")
        failed.wait(60)
        for piece in original(found, digest, start, stop):
            yield piece[:1000]
            time.sleep(0.5)  # or until it is given up
            yield piece[1000:]

    monkeypatch.setattr(push_module, "_stored", read)
    with pytest.raises(StoreError, match="the disk is gone"):
        pushed(toy, image, store)
    assert image.layers[1].descriptor.digest not in toy.blobs
    assert untagged(toy)


def test_two_pushes_at_once_end_well(toy: Toy, image: Image, store: Store) -> None:
    """Of the same blobs, with a reset in one of them."""
    toy.faults["PATCH"] = ["", "", "cut"]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: pushed(toy, image, store), range(2)))
    assert whole(toy, image)


def test_an_upload_is_led_nowhere_in_the_clear(toy: Toy, image: Image, store: Store) -> None:
    """A Location by plain HTTP on another host is refused before a byte is sent there."""
    handler = toyregistry.Handler.reply

    def astray(self: toyregistry.Handler, status: int, body: bytes, headers: Any = None, **more: Any) -> None:  # noqa: ANN401
        there = {"Location": "http://one.example/upload"} if status == 202 else {}
        handler(self, status, body, {**(headers or {}), **there}, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toyregistry.Handler, "reply", astray)
        with pytest.raises(PushError, match="plain HTTP"):
            pushed(toy, image, store)
    assert untagged(toy)


def test_a_push_that_is_killed_is_taken_up(toy: Toy, image: Image, store: Store) -> None:
    """A kill -9 amid a blob leaves no tag; the next push sends only what has not arrived, of the broken blob too."""
    program = (
        "import sys, pathlib; from torchkiln.oci.push import push; from torchkiln.oci.store import Store;"
        "from tests.oci.test_push import imaged, SMALL, LARGE, CHUNK;"
        "store = Store(pathlib.Path(sys.argv[1]));"
        "push(imaged(store, SMALL, LARGE), store, sys.argv[2], environment={}, chunk=CHUNK)"
    )
    toy.faults["PATCH"] = ["", "stall"]
    command = [sys.executable, "-c", program, str(store.root), f"{toy.host}/{REPOSITORY}:one"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as child:
        try:
            assert toy.stalled.wait(60)
            while sum(entry.startswith("blob") for entry in toy.log) < 2:
                assert child.poll() is None
                time.sleep(0.01)
        finally:
            child.send_signal(signal.SIGKILL)
    toy.stall.set()
    assert child.returncode == -signal.SIGKILL
    assert untagged(toy)
    done = pushed(toy, image, store)
    assert whole(toy, image)
    assert sorted(done.blobs.values()) == ["sent", "there", "there"]
    assert [start for start, _ in toy.chunks] == [0, 1 << 20, 1 << 20, 3 << 20, 5 << 20]
    assert toy.uploads == {}
    assert list(store.uploads.iterdir()) == []


def test_progress_is_told(
    toy: Toy, image: Image, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each blob when it is done, a large one before that; on stderr."""
    monkeypatch.setattr(delivery, "TOLD", 4 << 20)
    pushed(toy, image, store)
    said = capsys.readouterr()
    assert said.out == ""
    assert "(3 of 3)" in said.err
    assert re.findall(r": (\d) of 5 MB", said.err) == ["5"]


def test_memory_does_not_grow_with_a_blob(store: Store, toy: Toy) -> None:
    """Pieces of 1 MiB are read as they go."""
    image = imaged(store, LARGE)
    sizes: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        original = Store.open

        @contextmanager
        def watched(self: Store, digest: digests.Digest) -> Iterator[Any]:
            with original(self, digest) as file:
                yield Watched(file, sizes)

        patch.setattr(Store, "open", watched)
        pushed(toy, image, store, chunk=1 << 30)
    assert max(sizes) <= 1 << 20
    assert sum(sizes) == len(LARGE) + len(config_bytes(image))


class Watched:
    """A file whose reads are noted."""

    def __init__(self, file: Any, sizes: list[int]) -> None:  # noqa: ANN401
        self.file, self.sizes = file, sizes

    def seek(self, offset: int) -> None:
        """As it is."""
        self.file.seek(offset)

    def read(self, size: int) -> bytes:
        """As it is, noted."""
        data: bytes = self.file.read(size)
        self.sizes.append(len(data))
        return data


def copied(old: Toy, new: Toy, digest: str, **given: Any) -> Pushed:  # noqa: ANN401  copy's own
    """What a copy between two registries gives."""
    options: dict[str, Any] = {
        "environment": {"NETRC": "/nonexistent"},
        "sleep": lambda _seconds: None,
        "chunk": CHUNK,
    } | given
    return copy(old.at(digest), f"{new.host}/{REPOSITORY}:one", **options)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_copy_is_the_same_to_the_byte(toy: Toy, *, ranges: bool) -> None:
    """From another registry, blob by blob, whatever breaks on either side."""
    with toyregistry.serving() as old:
        old.ranges = ranges
        digest = old.add(SMALL, LARGE)
        layer = digests.of_bytes(gzip.compress(LARGE, mtime=0))
        old.faults[layer] = ["", "cut", "503"]
        toy.faults["PATCH"] = ["", "", "cut"]
        done = copied(old, toy, digest)
        assert done.digest == digest
        assert toy.manifests["one"] == old.manifests[digest]
        assert toy.blobs == old.blobs
        assert set(copied(old, toy, digest).blobs.values()) == {"there"}


def test_an_index_is_copied_with_all_its_images(toy: Toy) -> None:
    """Each blob once, each manifest before the index that lists it."""
    with toyregistry.serving() as old:
        digest = old.index({"amd64": old.add(SMALL), "arm64": old.add(SMALL, LARGE)})
        assert copied(old, toy, digest).digest == digest
        assert toy.manifests["one"] == old.manifests[digest]
        assert set(old.manifests) <= set(toy.manifests)
        assert toy.blobs == old.blobs
        nested = old.name(
            {
                **json.loads(old.manifests[digest][1]),
                "manifests": [{"mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest, "size": 1}],
            }
        )
        with pytest.raises(ImageError, match="the index lists"):
            copied(old, toy, nested)


def test_an_index_without_an_end_is_not_copied(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its manifests are in memory together, so they are bounded together."""
    monkeypatch.setattr(copying, "LARGEST_FAMILY", 5000)
    with toyregistry.serving() as old:
        digest = old.add(SMALL)
        few, many = (
            old.index({f"a{number}": digest for number in range(count)})
            for count in (2, 5000 // len(old.manifests[digest][1]) + 1)
        )
        assert copied(old, toy, few).digest == few
        with pytest.raises(ImageError, match="more than 5000 bytes"):
            copied(old, toy, many)


@pytest.mark.parametrize("fault", ["other", "404", "longer"])
def test_a_copy_of_something_else_has_no_tag(toy: Toy, fault: str) -> None:
    """A source that serves other bytes is told by who gets them."""
    with toyregistry.serving() as old:
        digest = old.add(LARGE)
        old.faults[digests.of_bytes(gzip.compress(LARGE, mtime=0))] = [fault] * 99
        if fault == "longer":  # only what was asked for is passed on
            assert copied(old, toy, digest).digest == digest
            return
        with pytest.raises(TorchkilnError):
            copied(old, toy, digest)
    assert untagged(toy)


@pytest.mark.parametrize("size", [-1, 1 << 60])
def test_a_copy_of_an_impossible_size_is_refused(toy: Toy, size: int) -> None:
    """Before anything is asked for."""
    with toyregistry.serving() as old:
        layer = {"mediaType": PLAIN_TYPE, "digest": "sha256:" + "a" * 64, "size": size}
        with pytest.raises(ImageError, match="the size"):
            copied(old, toy, old.add(SMALL, manifest={"layers": [layer]}))
    assert toy.log == []


@pytest.mark.parametrize("to", ["one.example", "one.example/x@sha256:" + "a" * 64, "one.example/x:a b", "x:1"])
def test_only_names_with_a_registry_are_destinations(store: Store, image: Image, to: str) -> None:
    """A digest is no place to push to."""
    with pytest.raises(ImageError):
        push(image, store, to, environment={})


def test_plain_http_must_be_told(store: Store, image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine is asked by HTTPS, unless it is named as one that may be asked otherwise."""
    asked: list[tuple[object, ...]] = []

    def nowhere(host: str, port: int, *_: object, **__: object) -> list[Any]:
        asked.append((host, port))
        raise socket.gaierror("no such host")

    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    for host, plain in (("one.example", ()), ("one.example", ("one.example",)), ("One.example", ("One.example",))):
        with pytest.raises(PushError):
            push(image, store, f"{host}/x:1", environment={}, plain=plain, sleep=lambda _seconds: None)
    assert list(dict.fromkeys(asked)) == [("one.example", 443), ("one.example", 80)]
    assert len(asked) >= 2 * session.TRIES


def test_a_registry_that_takes_no_uploads_says_so(toy: Toy, image: Image, store: Store) -> None:
    """A mirror, or one that is read-only: no name would help."""
    toy.faults["POST"] = ["405"] * 9
    with pytest.raises(PushError, match="takes no uploads") as raised:
        pushed(toy, image, store)
    assert "read-only" in raised.value.remedy


def test_a_blob_of_another_size_is_sent_again(toy: Toy, image: Image, store: Store) -> None:
    """That it is there, as HEAD says, is not enough; a registry that doesn't say how large it is is believed."""
    digest = image.layers[1].descriptor.digest
    toy.blobs[digest] = LARGE[:100]
    assert pushed(toy, image, store).blobs[digest] == "sent"
    assert whole(toy, image)


@pytest.mark.parametrize("size", [len(SMALL), len(LARGE)])
def test_a_copy_of_a_damaged_blob_names_who_served_it(toy: Toy, size: int) -> None:
    """Whether it goes in one request or in chunks; who should have got it has none of it, nor the half of an upload."""
    data = SMALL if size == len(SMALL) else LARGE
    with toyregistry.serving() as old:
        digest = old.add(data)
        blob = digests.of_bytes(gzip.compress(data, mtime=0))
        old.blobs[blob] = bytes(len(old.blobs[blob]))
        with pytest.raises(HashMismatchError, match="the registry serves") as raised:
            copied(old, toy, digest)
        assert raised.value.where == f"{old.host}/{REPOSITORY}"
    assert untagged(toy)
    assert blob not in toy.blobs
    assert toy.uploads == {}


def test_a_copy_of_a_truncated_blob_names_who_served_it(toy: Toy) -> None:
    """As soon as the registry says how much it has."""
    with toyregistry.serving() as old:
        digest = old.add(LARGE)
        blob = digests.of_bytes(gzip.compress(LARGE, mtime=0))
        old.blobs[blob] = old.blobs[blob][: 3 << 20]
        with pytest.raises(HashMismatchError, match="shorter than the stated") as raised:
            copied(old, toy, digest)
        assert raised.value.where == f"{old.host}/{REPOSITORY}"
    assert untagged(toy)
