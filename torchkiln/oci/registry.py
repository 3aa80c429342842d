"""A registry's client (distribution-spec 1.1): documents and blobs by digest, bounded, and every byte hashed."""

from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import httpx

from torchkiln import credentials, network
from torchkiln.errors import FetchError, HashMismatchError, ImageError
from torchkiln.oci import digest as digests
from torchkiln.oci.image import INDEX_TYPE, MANIFEST_TYPE
from torchkiln.oci.reference import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torchkiln.oci.digest import Digest
    from torchkiln.oci.image import Descriptor
    from torchkiln.oci.reference import Reference
    from torchkiln.oci.store import BlobWriter, Store

_T = TypeVar("_T")
DOCKER = "application/vnd.docker."
INDEX_TYPES = (INDEX_TYPE, f"{DOCKER}distribution.manifest.list.v2+json")
MANIFEST_TYPES = (MANIFEST_TYPE, f"{DOCKER}distribution.manifest.v2+json")
LARGEST_MANIFEST = 4 << 20
"""Bytes; what registries must take at least (distribution-spec, Pushing Manifests), and all that anybody needs."""
CONNECTIONS = 4
TRIES = 5
"""In a row without progress."""
RETRIED = {408, 429, 500, 502, 503, 504}
LONGEST_WAIT = 60
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What may stand after `Bearer` (RFC 6750, 2.1)."""


class _AgainError(Exception):
    """What may be better next time."""

    def __init__(self, what: str, wait: float = 0) -> None:
        super().__init__(what)
        self.wait = wait


@dataclass(slots=True, kw_only=True)
class Registry:
    """One repository of a registry, over connections that threads share."""

    reference: Reference
    client: httpx.Client
    environment: Mapping[str, str]
    sleep: Callable[[float], None] = time.sleep
    token: str = field(default="", repr=False)

    def manifest(self, digest: Digest) -> tuple[bytes, str]:
        """A manifest or index by digest, and its media type."""
        accepted = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))

        def ask() -> tuple[bytes, str]:
            with self._answer(f"manifests/{digest}", {"Accept": accepted}) as response:
                stated = response.headers.get("Content-Type", "").partition(";")[0]
                return _bounded(response, LARGEST_MANIFEST), stated

        data, stated = self._persist(f"manifest {digest}", ask)
        return self._checked(data, digest), str(parsed(data).get("mediaType") or stated)

    def document(self, blob: Descriptor, limit: int) -> bytes:
        """A small blob as a whole."""
        if blob.size > limit:
            raise ImageError(f"{blob.digest} has {blob.size} bytes, more than {limit}", where=self.where)

        def ask() -> bytes:
            with self._answer(f"blobs/{blob.digest}", {}) as response:
                return _bounded(response, blob.size)

        return self._checked(self._persist(f"blob {blob.digest}", ask), blob.digest)

    def blob(self, blob: Descriptor, store: Store) -> None:
        """Put a blob into the store, unless it is there; a connection that breaks is taken up where it broke."""
        if store.has(blob):
            return
        with store.writer() as writer:
            self._persist(f"blob {blob.digest}", lambda: self._append(blob, writer), progress=lambda: writer.size)
            self._same(writer.digest, blob.digest)
            writer.commit(blob.media_type)

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.reference.host}/{self.reference.repository}"

    def _append(self, blob: Descriptor, writer: BlobWriter) -> None:
        headers = {"Range": f"bytes={writer.size}-"} if writer.size else {}
        with self._answer(f"blobs/{blob.digest}", headers) as response:
            skip = 0 if response.status_code == httpx.codes.PARTIAL_CONTENT else writer.size
            for piece in response.iter_raw():
                writer.write(piece[skip:])
                skip = max(0, skip - len(piece))
                if writer.size > blob.size:
                    raise self._other(f"{blob.digest} has more than the stated {blob.size} bytes")
        if writer.size < blob.size:
            raise _AgainError(f"the connection ended after {writer.size} of {blob.size} bytes")

    def _checked(self, data: bytes, digest: Digest) -> bytes:
        self._same(digests.of_bytes(data), digest)
        return data

    def _same(self, found: Digest, expected: Digest) -> None:
        if found != expected:
            raise self._other(f"the registry serves {found} as {expected}")

    def _other(self, what: str) -> HashMismatchError:
        return HashMismatchError(what, where=self.where, remedy="find out who changed it before trusting either")

    def _persist(self, what: str, act: Callable[[], _T], progress: Callable[[], int] = lambda: 0) -> _T:
        """Try until it succeeds, or until nothing more comes."""
        fruitless = 0
        while True:
            before = progress()
            try:
                return act()
            except (_AgainError, httpx.RequestError) as error:
                fruitless = 1 if progress() > before else fruitless + 1
                if fruitless >= TRIES:
                    said = str(error) or type(error).__name__
                    remedy = "check the network and the registry's name, then run it again: what has come is kept"
                    raise FetchError(f"{what}: {network.redact(said)}", where=self.where, remedy=remedy) from error
                self.sleep(getattr(error, "wait", 0) or 0.5 * 2 ** (fruitless - 1))

    @contextmanager
    def _answer(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """The response to a GET, after at most one round for a token; _AgainError or FetchError if it is none."""
        for first in (True, False):
            sent = {**headers, **({"Authorization": f"Bearer {self.token}"} if self.token else {})}
            with self.client.stream("GET", f"{self.reference.address}/{path}", headers=sent) as response:
                challenge = response.headers.get("WWW-Authenticate", "")
                asked = challenge.lower().startswith("bearer ")  # a scheme's case doesn't matter (RFC 9110, 11.1)
                if response.status_code == httpx.codes.UNAUTHORIZED and first and asked:
                    self.token = self._asked(dict(re.findall(r'(\w+)="([^"]*)"', challenge)))
                    continue
                self._judge(response, path)
                yield response
                return

    def _judge(self, response: httpx.Response, path: str) -> None:
        status = response.status_code
        for one in (*response.history, response):
            self._secure(one.url)
        if status in RETRIED:
            after = response.headers.get("Retry-After", "")
            wait = min(int(after), LONGEST_WAIT) if after.isdecimal() else 0
            raise _AgainError(f"the registry answers {status} {response.reason_phrase}", wait)
        if status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
            remedy = f"put a user and password for {self.reference.host} into ~/.netrc, or into the file $NETRC names"
            raise FetchError(
                f"the registry refuses: {status} {response.reason_phrase}", where=self.where, remedy=remedy
            )
        if status not in {httpx.codes.OK, httpx.codes.PARTIAL_CONTENT}:
            remedy = "compare `image` in matrix.yaml with what the registry has"
            raise FetchError(f"{path}: {status} {response.reason_phrase}", where=self.where, remedy=remedy)

    def _asked(self, challenge: Mapping[str, str]) -> str:
        """A token for pulling, with the registry's credentials if there are any (distribution's token documents).

        No others are sent, whatever place the registry names: the answer becomes a token that the registry is shown.
        """
        try:
            realm = httpx.URL(challenge.get("realm", ""))
        except httpx.InvalidURL as error:
            raise FetchError(f"the registry names no place for tokens: {error}", where=self.where) from error
        self._secure(realm)
        known = credentials.find(self.environment, f"https://{self.reference.host}")
        asked = {name: value for name, value in challenge.items() if name in {"service", "scope"}}
        asked.setdefault("scope", f"repository:{self.reference.repository}:pull")
        auth = httpx.BasicAuth(*known) if known else httpx.Auth()
        with self.client.stream("GET", realm, params=asked, auth=auth) as response:
            self._judge(response, "token")
            found = parsed(_bounded(response, LARGEST_MANIFEST))
        token = str(found.get("token") or found.get("access_token") or "")
        if not _TOKEN.fullmatch(token):
            raise FetchError("the registry hands out what is no token", where=self.where)
        return token

    def _secure(self, address: httpx.URL) -> None:
        """Neither a token nor a blob travels in the clear, but on this machine, where only its own registries lead."""
        local = address.host in LOOPBACK
        if local and not self.reference.local:
            remedy = "ask who runs it: no other machine has a reason to"
            raise FetchError("the registry leads to this machine", where=self.where, remedy=remedy)
        if address.scheme != "https" and not local:
            remedy = "use a registry that has HTTPS"
            raise FetchError("the registry leads to plain HTTP", where=address.host, remedy=remedy)


def _bounded(response: httpx.Response, limit: int) -> bytes:
    data = network.bounded(response.iter_raw(), limit)
    if data is None:
        raise ImageError(f"more than {limit} bytes", where=network.redact(str(response.url.copy_with(query=None))))
    return data


def parsed(data: bytes) -> Mapping[str, object]:
    """A JSON object; ImageError for what is no JSON, nothing for another value."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ImageError(f"the registry serves no JSON: {error}") from error
    return found if isinstance(found, dict) else {}


@contextmanager
def connected(
    reference: Reference, environment: Mapping[str, str], sleep: Callable[[float], None] = time.sleep
) -> Iterator[Registry]:
    """A repository's client, closed after."""
    with network.client(environment, connections=CONNECTIONS) as client:
        yield Registry(reference=reference, client=client, environment=environment, sleep=sleep)
