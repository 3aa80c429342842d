"""A registry's client (distribution-spec 1.1): documents and blobs by digest, bounded, and every byte hashed."""

from __future__ import annotations

import re
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from torchkiln import network
from torchkiln.errors import FetchError, HashMismatchError, ImageError
from torchkiln.oci import digest as digests
from torchkiln.oci.answer import LARGEST_MANIFEST, AgainError, bounded, parsed
from torchkiln.oci.image import INDEX_TYPE, MANIFEST_TYPE, Descriptor
from torchkiln.oci.session import CONNECTIONS, FOUND, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from torchkiln.errors import TorchkilnError
    from torchkiln.oci.digest import Digest, Tally
    from torchkiln.oci.reference import Repository
    from torchkiln.oci.store import BlobWriter, Store

DOCKER = "application/vnd.docker."
DAMAGED = "push an image that holds it there again; if it stays so, ask who runs the registry to remove that blob"
INDEX_TYPES = (INDEX_TYPE, f"{DOCKER}distribution.manifest.list.v2+json")
MANIFEST_TYPES = (MANIFEST_TYPE, f"{DOCKER}distribution.manifest.v2+json")


@dataclass(slots=True, kw_only=True)
class Registry(Session):
    """What is in a repository."""

    def manifest(self, digest: Digest) -> tuple[bytes, str]:
        """A manifest or index by digest, and its media type."""
        accepted = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))

        def ask() -> tuple[bytes, str]:
            with self._answer(f"manifests/{digest}", {"Accept": accepted}) as response:
                stated = response.headers.get("Content-Type", "").partition(";")[0]
                return bounded(response, LARGEST_MANIFEST), stated

        data, stated = self.persist(f"manifest {digest}", ask)
        return self._checked(data, digest), str(parsed(data).get("mediaType") or stated)

    def document(self, blob: Descriptor, limit: int) -> bytes:
        """A small blob as a whole."""
        if blob.size > limit:
            raise ImageError(f"{blob.digest} has {blob.size} bytes, more than {limit}", where=self.where)

        def ask() -> bytes:
            with self._answer(f"blobs/{blob.digest}", {}) as response:
                return bounded(response, blob.size)

        return self._checked(self.persist(f"blob {blob.digest}", ask), blob.digest)

    def blob(self, blob: Descriptor, store: Store) -> None:
        """Put a blob into the store, unless it is there; a connection that breaks is taken up where it broke."""
        if store.has(blob):
            return
        with store.writer() as writer:
            self.persist(f"blob {blob.digest}", lambda: self._append(blob, writer), progress=lambda: writer.size)
            self.same(writer.digest, blob.digest)
            writer.commit(blob.media_type)
        self.arrived = True

    def blobs(self, wanted: Iterable[Descriptor], store: Store) -> dict[Digest, HashMismatchError]:
        """Put blobs into the store, the largest first, unless they are there; what is wrong with those that are not.

        Any other failure ends all; HostError before any is asked for if the disk can't hold them.
        """
        bad: dict[Digest, HashMismatchError] = {}
        wanted = tuple(wanted)
        store.expect(wanted)
        with self.threads() as pool:
            ordered = sorted({blob.digest: blob for blob in wanted}.values(), key=lambda blob: -blob.size)
            jobs = {pool.submit(self.blob, blob, store): blob.digest for blob in ordered}
            for done in as_completed(jobs):
                try:
                    done.result()
                except HashMismatchError as error:
                    bad[jobs[done]] = error
        return bad

    def reckon(self, blob: Descriptor) -> Digest:
        """The digest of a blob as it is served, read to its end; HashMismatchError if it has more bytes than stated."""
        tally = digests.Tally()
        self.persist(f"blob {blob.digest}", lambda: self._append(blob, tally), progress=lambda: tally.size)
        return tally.digest

    def size(self, blob: Descriptor) -> int | None:
        """Bytes of a blob as the registry states them: `blob.size` if it states none, None if it has no such blob."""

        def ask() -> int | None:
            address = f"{self.reference.address}/blobs/{blob.digest}"
            with self.ask("HEAD", address, good={200, 404}) as response:
                stated = response.headers.get("Content-Length", "")[:19]
                size = int(stated) if stated.isdecimal() else 0  # some answer HEAD with 0
                return (size or blob.size) if response.status_code == httpx.codes.OK else None

        return self.persist(f"blob {blob.digest}", ask)

    def admitted(self) -> None:
        """The session's failure if the repository can't be read; that it isn't there yet is none."""
        self.size(Descriptor(media_type="", digest=digests.of_bytes(b""), size=0))

    def resolve(self, name: str) -> str:
        """The digest of what a tag or digest stands for now, as the registry states it, else reckoned."""

        def ask() -> str:
            accepted = {"Accept": ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))}
            address = f"{self.reference.address}/manifests/{name}"
            with self.ask("HEAD", address, accepted) as response:
                stated = str(response.headers.get("Docker-Content-Digest", ""))
            if stated:
                return stated[:100]
            with self.ask("GET", address, accepted) as response:
                return digests.of_bytes(bounded(response, LARGEST_MANIFEST))

        return self.persist(f"manifest {name}", ask)

    def pieces(self, blob: Descriptor, start: int, stop: int) -> Iterator[bytes]:
        """A part of a blob, not hashed: `oci.passing` does that. AgainError if it ends early."""
        left = stop - start
        with self._rest(blob, start, stop) as response:
            skip = 0 if response.status_code == httpx.codes.PARTIAL_CONTENT else start
            for piece in response.iter_raw():
                wanted = piece[skip : skip + left]
                skip = max(0, skip - len(piece))
                left -= len(wanted)
                yield wanted
                if not left:
                    return
        raise AgainError(f"{self.where} ended {left} bytes before {stop}")

    @contextmanager
    def _answer(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """The response to a GET in this repository."""
        with self.ask("GET", f"{self.reference.address}/{path}", headers) as response:
            yield response

    @contextmanager
    def _rest(self, blob: Descriptor, start: int, stop: int = 0) -> Iterator[httpx.Response]:
        """The response to a GET of a blob from an offset; HashMismatchError if the registry's copy ends before that."""
        headers = {"Range": f"bytes={start}-{stop - 1 if stop else ''}"} if start or stop else {}
        good = {*FOUND, httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE}
        with self.ask("GET", f"{self.reference.address}/blobs/{blob.digest}", headers, good=good) as response:
            first, total = _range(response)
            beyond = response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE
            if beyond or total < blob.size:
                what = (
                    f"the registry's copy of {blob.digest} is damaged: it is shorter than the stated {blob.size} bytes"
                )
                raise HashMismatchError(what, where=self.where, remedy=DAMAGED)
            if response.status_code == httpx.codes.PARTIAL_CONTENT and first not in {None, start}:
                raise AgainError(f"the registry answers with bytes from {first} on, not {start}")
            yield response

    def _append(self, blob: Descriptor, writer: BlobWriter | Tally) -> None:
        if 0 < writer.size == blob.size:
            return  # it broke behind the last byte
        with self._rest(blob, writer.size) as response:
            skip = 0 if response.status_code == httpx.codes.PARTIAL_CONTENT else writer.size
            for piece in response.iter_raw():
                self.go_on()
                writer.write(piece[skip:])
                skip = max(0, skip - len(piece))
                if writer.size > blob.size:
                    raise self._other(f"{blob.digest} has more than the stated {blob.size} bytes")
        if writer.size < blob.size:
            raise AgainError(f"the connection ended after {writer.size} of {blob.size} bytes")

    def _checked(self, data: bytes, digest: Digest) -> bytes:
        self.same(digests.of_bytes(data), digest)
        return data

    def same(self, found: Digest, expected: Digest) -> None:
        """HashMismatchError if what the registry served is something else."""
        if found != expected:
            raise self._other(f"the registry serves {found} as {expected}")

    def _other(self, what: str) -> HashMismatchError:
        return HashMismatchError(what, where=self.where, remedy="find out who changed it before trusting either")


def _range(response: httpx.Response) -> tuple[int | None, int]:
    """The first byte of a part, if said, and the bytes of the whole, else more than any has (RFC 9110, 14.4)."""
    stated = response.headers.get("Content-Range", "")
    found = re.fullmatch(r"(?:bytes[ =])?(?:(\d{1,18})-\d{1,18}|\*)/(?:(\d{1,18})|\*)", stated)
    first, total = found.groups() if found else (None, None)
    return int(first) if first else None, int(total) if total else 1 << 62


@contextmanager
def connected(
    reference: Repository,
    environment: Mapping[str, str],
    sleep: Callable[[float], object] | None = None,
    *,
    scopes: tuple[str, ...] = (),
    failure: type[TorchkilnError] = FetchError,
) -> Iterator[Registry]:
    """A repository's client, closed after."""
    with network.client(environment, connections=CONNECTIONS, follow=False) as client:
        yield Registry(
            reference=reference, client=client, environment=environment, sleep=sleep, scopes=scopes, failure=failure
        )
