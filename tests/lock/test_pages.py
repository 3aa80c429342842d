"""An index and its server may say anything: what is no answer is a LockError, and none is read without an end."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING

import httpx
import pytest

from torchkiln import network
from torchkiln.errors import LockError
from torchkiln.lock import metadata, pages
from torchkiln.lock.index import Offer

if TYPE_CHECKING:
    from collections.abc import Callable

JSON = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
OFFER = Offer(
    name="x", version="1", filename="x-1-py3-none-any.whl", url="https://one.example/x.whl", sha256="", size=1
)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[httpx.Request], httpx.Response]], None]:
    """What the server answers from now on."""

    def serve(answer: Callable[[httpx.Request], httpx.Response]) -> None:
        transport = httpx.MockTransport(answer)
        monkeypatch.setattr(network, "client", lambda *_, **__: httpx.Client(transport=transport))

    return serve


def stated(answers: Callable[..., None], data: bytes, headers: dict[str, str]) -> frozenset[str]:
    """The files with a hash on a page."""
    answers(lambda _: httpx.Response(200, content=data, headers=headers))
    return pages.hashed("https://one.example/simple", ["x"], {})


def test_a_hash_is_one_that_is_stated(answers: Callable[..., None]) -> None:
    """In both forms of a page; null is none."""
    files = [{"filename": "a", "hashes": {"sha256": "1"}}, {"filename": "b", "hashes": None}, {"filename": "c"}]
    assert stated(answers, json.dumps({"files": files}).encode(), JSON) == {"a"}
    assert stated(answers, b'<a href="/f/a%2B1#sha256=1">a</a><a href="/f/b">b</a>', {}) == {"a+1"}


@pytest.mark.parametrize("data", [b"no json", b"[]", b'{"files": [1]}', b'{"files": [{"hashes": 1}]}', b"[" * 100_000])
def test_a_page_of_another_form_is_told(answers: Callable[..., None], data: bytes) -> None:
    """With the index that gave it, in no library's traceback."""
    with pytest.raises(LockError, match="does not say") as raised:
        stated(answers, data, JSON)
    assert "one.example" in raised.value.where


def test_a_link_that_is_none_is_told(answers: Callable[..., None]) -> None:
    """An address that can't be split is as good as no page."""
    with pytest.raises(LockError, match="does not say"):
        stated(answers, b'<a href="//[::1">x</a>', {})


def test_an_endless_page_is_told(answers: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as it is longer than any."""
    monkeypatch.setattr(pages, "LARGEST", 10)
    with pytest.raises(LockError, match="more than 10 bytes"):
        stated(answers, b"x" * 11, {})


def ranges(data: bytes) -> Callable[[httpx.Request], httpx.Response]:
    """A server of one file and no metadata beside it."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith(".metadata"):
            return httpx.Response(404)
        if request.method == "HEAD":
            return httpx.Response(200, headers={"Content-Length": str(len(data))})
        first, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
        return httpx.Response(206, stream=httpx.ByteStream(data[first : last + 1]))

    return answer


def archive(text: bytes) -> bytes:
    """A wheel with this METADATA."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x-1.dist-info/METADATA", text)
    return stream.getvalue()


def test_metadata_comes_out_of_the_wheel(answers: Callable[..., None]) -> None:
    """By parts of the file, where the index has none beside it."""
    answers(ranges(archive(b"Metadata-Version: 2.1\nName: x\nVersion: 1\nRequires-Dist: y>1\n")))
    assert [str(text) for text in metadata.of(OFFER, {}).requires_dist or ()] == ["y>1"]


def test_metadata_that_unpacks_without_end_is_told(answers: Callable[..., None]) -> None:
    """A few bytes in the wheel may be gigabytes."""
    answers(ranges(archive(bytes(metadata.LARGEST + 1))))
    with pytest.raises(LockError, match="more than"):
        metadata.of(OFFER, {})


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200),
        httpx.Response(200, headers={"Content-Length": "many"}),
        httpx.Response(200, headers={"Content-Length": "9"}),
    ],
)
def test_a_server_without_sizes_or_parts_is_told(answers: Callable[..., None], answer: httpx.Response) -> None:
    """It is named with the file, and nothing is read in place of it."""
    answers(lambda request: httpx.Response(404) if request.url.path.endswith(".metadata") else answer)
    with pytest.raises(LockError, match=r"x-1-py3-none-any\.whl cannot be had"):
        metadata.of(OFFER, {})
