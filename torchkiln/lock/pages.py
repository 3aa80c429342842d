"""The files on a project's page of an index for which it states a hash (PEP 503 and 691).

uv hashes a file itself where the index states nothing, and does not say so; a lock must not take that for a statement.
"""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import httpx

from torchkiln import network
from torchkiln.errors import LockError
from torchkiln.oci.document import MALFORMED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
LARGEST = 64 << 20
"""Bytes of a page; the longest there are have a few."""


def hashed(index: str, projects: Iterable[str], environment: Mapping[str, str]) -> frozenset[str]:
    """Names of the files of projects for which an index states a sha256; LockError for a page of no known form."""
    with network.client(environment, connections=1) as client:
        return frozenset(name for project in projects for name in _stated(client, f"{index}/{project}/"))


def _stated(client: httpx.Client, page: str) -> Iterable[str]:
    try:
        with client.stream("GET", page, headers={"Accept": ACCEPT}) as response:
            data = network.bounded(response.raise_for_status().iter_bytes(), LARGEST)
            kind = response.headers.get("Content-Type", "").partition(";")[0]
        if data is None:
            raise ValueError(f"its page has more than {LARGEST} bytes")
        return _listed(data) if kind.endswith("+json") else _linked(data)
    except (httpx.HTTPError, *MALFORMED) as error:
        what = f"the index does not say whether it has hashes: {error}"
        raise LockError(what, where=page, remedy="try again later") from error


def _listed(data: bytes) -> list[str]:
    return [str(file["filename"]) for file in json.loads(data)["files"] if (file.get("hashes") or {}).get("sha256")]


def _linked(data: bytes) -> list[str]:
    links = _Links()
    links.feed(data.decode(errors="replace"))
    return links.hashed


class _Links(HTMLParser):
    """The anchors of a page whose address ends in a hash."""

    def __init__(self) -> None:
        super().__init__()
        self.hashed: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        parts = urlsplit(dict(attrs).get("href") or "")
        if tag == "a" and parts.fragment.startswith("sha256="):
            self.hashed.append(unquote(parts.path.rpartition("/")[2]))
