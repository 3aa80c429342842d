from __future__ import annotations

import os
from typing import TYPE_CHECKING

import httpx
import pytest

from tests import loopback
from torchkiln import network
from torchkiln.errors import FetchError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_first_named_bundle_serves_every_fetcher() -> None:
    """Each client reads another variable; whichever is set is the one."""
    assert network.certificates({"PIP_CERT": "/p", "REQUESTS_CA_BUNDLE": "/r"}) == "/r"
    assert network.certificates({"PIP_CERT": "/p", "SSL_CERT_FILE": ""}) == "/p"
    assert network.certificates({}) == ""


def test_a_named_bundle_that_is_missing_is_an_error() -> None:
    """Trust never falls back to something else than what was asked for."""
    with pytest.raises(FileNotFoundError):
        network.trust({"SSL_CERT_FILE": "/absent.pem"})


def test_credentials_do_not_follow_a_redirect_to_another_host(tmp_path: Path) -> None:
    """What one host is told stays there."""
    seen: list[tuple[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.host, request.headers.get("Authorization", "")))
        if request.url.host == "one.example":
            return httpx.Response(302, headers={"Location": "https://two.example/"})
        return httpx.Response(200)

    environment = {"HOME": str(tmp_path), "UV_DEFAULT_INDEX": "https://me:mine@one.example/"}
    with network.client(environment, connections=1) as client:
        client._mounts.clear()  # a proxy of this machine would otherwise take the requests
        client._transport = httpx.MockTransport(answer)
        client.get("https://one.example/file")
    assert seen == [("one.example", "Basic bWU6bWluZQ=="), ("two.example", "")]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("https://one.example/", "http://one.example/", "plain HTTP"),
        ("https://one.example/", "http:///file", "plain HTTP"),
        ("https://one.example/", "ftp://two.example/", "plain HTTP"),
        ("https://127.0.0.1/", "http://127.0.0.1/", "plain HTTP"),
        ("https://one.example/", "https://localhost/", "this machine"),
        ("http://one.example/", "http://[::1]/", "this machine"),
        ("http://one.example/", "//127.0.0.1:9/", "this machine"),
        ("http://one.example/", "http://two.example/", ""),
        ("http://127.0.0.1/", "http://localhost/", ""),
        ("https://one.example/", "//two.example/", ""),
    ],
)
def test_no_redirect_leads_where_nobody_should_be_led(first: str, second: str, said: str) -> None:
    """From an encrypted place only to such a one, and from no other machine to this one; nobody is asked there."""
    seen: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url)
        return httpx.Response(307 if request.url == first else 200, headers={"Location": second})

    with network.client({}, connections=1) as client:
        client._mounts.clear()
        client._transport = httpx.MockTransport(answer)
        if said:
            with pytest.raises(FetchError, match=f"leads to {said}"):
                client.get(first)
        else:
            assert client.get(first).status_code == 200
    assert len(seen) == (1 if said else 2)


def test_a_place_that_is_none_is_told_as_a_server_s_fault() -> None:
    """So that it is told like any other."""
    with network.client({}, connections=1) as client:
        client._mounts.clear()
        client._transport = httpx.MockTransport(lambda _: httpx.Response(302, headers={"Location": "https://x:y/"}))
        with pytest.raises(httpx.RemoteProtocolError):
            client.get("https://one.example/")


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY", "all_proxy"])
def test_this_machine_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A proxy would be shown, in the clear, the password of a registry that listens here alone."""
    for other in [other for other in os.environ if other.lower().endswith("_proxy")]:
        monkeypatch.delenv(other)
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    with loopback.serve() as index, network.client({}, connections=1) as client:
        for host in ("127.0.0.1", "localhost"):
            assert (
                client.get(index.url.replace("127.0.0.1", host) + "/simple/none").status_code == httpx.codes.NOT_FOUND
            )
        with pytest.raises(httpx.ConnectError, match="refused"):
            client.get("http://one.example/")
