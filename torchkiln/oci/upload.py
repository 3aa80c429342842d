"""One blob to a registry (distribution-spec, "Pushing blobs"): unless it is there, mounted if it is next door.

Else in chunks, taken up where the registry has it after whatever went wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import httpx

from torchkiln.errors import ROW, HashMismatchError, TorchkilnError
from torchkiln.oci.answer import AgainError, said
from torchkiln.oci.location import cancel, located, reported
from torchkiln.oci.session import BRIEF
from torchkiln.oci.unfinished import held
from torchkiln.pace import FLOOR

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torchkiln.oci.image import Descriptor
    from torchkiln.oci.registry import Registry
    from torchkiln.oci.unfinished import Note

How = Literal["there", "mounted", "sent"]
Read = Callable[[int, int], Iterator[bytes]]
"""The bytes of a blob from one offset up to another, in pieces."""
FIRST = 1 << 20
"""Bytes of the first chunk: Quay reads it with a slow decompressor. A blob that is no larger comes in one request."""
CHUNK = 64 << 20
"""Bytes of the others: what a lost session costs at most, and less than proxies before registries take."""
COMMIT = httpx.Timeout(60, connect=20, read=900)
"""A registry may read a blob of many GB again before it answers."""
DOUBTS = 3
MOUNT_REFUSED = {400, 401, 403, 404, 405}
CHUNK_REFUSED = {400, 405, 411, 501}
OCTETS = {"Content-Type": "application/octet-stream"}


def send(
    registry: Registry,
    blob: Descriptor,
    read: Read,
    *,
    siblings: Sequence[str] = (),
    chunk: int = CHUNK,
    arrived: Callable[[int], None] = lambda _offset: None,
    notes: Path | None = None,
    anew: bool = False,
) -> How:
    """Put a blob into the repository; `siblings` are repositories of the same registry that may have it.

    `arrived` is told after each chunk how many bytes the registry has. In the folder `notes` stands where uploads broke
    off that can be gone on with, by another run too; others are cancelled. `anew` sends what is there too.

    The session's failure if it can't be had; HashMismatchError if the registry got other bytes than the digest's.
    """
    if not anew and registry.size(blob) == blob.size:
        return "there"
    kept = notes if blob.size > FIRST else None  # what goes in one request can't be gone on with
    with held(kept, f"{registry.reference.address}/{blob.digest}") as note:
        location, least = note.read()
        upload = Upload(
            registry=registry,
            blob=blob,
            read=read,
            siblings=() if anew else tuple(siblings),  # next door it is the same blob
            anew=anew,
            chunk=chunk,
            arrived=arrived,
            note=note,
            location=location,
            least=least,
        )
        try:
            how = registry.persist(f"blob {blob.digest}", upload.attempt, progress=lambda: upload.furthest)
        except BaseException as error:
            upload.abandon(usable=not isinstance(error, HashMismatchError))
            raise
        note.clear()
        registry.arrived = True
        return how


@dataclass(slots=True, kw_only=True)
class Upload:
    """A blob on its way."""

    registry: Registry
    blob: Descriptor
    read: Read
    siblings: tuple[str, ...]
    anew: bool
    """Whether that the registry has it says nothing: it had it before."""
    chunk: int
    arrived: Callable[[int], None]
    note: Note
    location: str = ""
    """Where the registry wants what comes next; empty before and after an upload of its."""
    offset: int = 0
    """Bytes that the registry has."""
    furthest: int = 0
    """The largest offset ever: what counts as progress."""
    least: int = 0
    """Bytes that a chunk must have, but the last (OCI-Chunk-Min-Length)."""
    begun: bool = False
    doubts: int = 0
    """How often in a row the registry couldn't say what it has."""
    pieced: bool = False
    """Whether it went on behind a break: what came late of the broken request may be in it twice."""
    whole: bool = False
    """Whether the registry wants no chunks."""

    def attempt(self) -> How:
        """Go as far as it goes; AgainError or RequestError where it broke."""
        if not self._resumed():
            if self.begun and not self.anew and self.registry.size(self.blob) == self.blob.size:
                return "sent"  # it arrived, but for the answer
            if self._mounted():
                return "mounted"
            self._begin()
        if self._one_go:
            self._close(0)
            return "sent"
        while self.offset < self.blob.size:
            self._continue()
        self._close(self.blob.size)
        return "sent"

    def abandon(self, *, usable: bool = True) -> None:
        """Leave a note on what another run can go on with; what nobody can go on with is cancelled."""
        place = self.location
        if not place:
            return
        with suppress(AgainError, httpx.RequestError, TorchkilnError):  # a registry that isn't heard of is left alone
            if usable and self.note.file and self._resumed(timeout=BRIEF) and self.offset:
                self.note.write(self.location, self.least)
            else:
                self.note.clear()
                cancel(self.registry, self.location or place)

    def _resumed(self, timeout: httpx.Timeout | None = None) -> bool:
        """Whether the upload goes on where the registry says that it is ("Pushing a blob in chunks", 416 and GET)."""
        location, self.location = self.location, ""
        if not location or self._one_go:
            return False
        try:
            good = {200, 204, 400, 404, 405, 416}
            with self.registry.ask("GET", location, good=good, timeout=timeout) as response:
                offset = reported(response)
                if response.status_code not in {200, 204} or offset is None or offset > self.blob.size:
                    return False
                self._located(response, location)
        except (AgainError, httpx.RequestError):
            self.doubts += 1
            self.location = location if self.doubts < DOUBTS else ""  # it may never tell
            raise
        except TorchkilnError:
            if self.begun:
                raise
            return False  # what another run noted is no reason to fail
        self.offset, self.doubts, self.begun, self.pieced = offset, 0, True, offset > 0
        return True

    @property
    def _one_go(self) -> bool:
        return self.whole or self.blob.size <= max(FIRST, self.least)

    def _mounted(self) -> bool:
        """Whether a sibling has it ("Mounting a blob from another repository"); each is asked once."""
        while self.siblings:
            sibling, self.siblings = self.siblings[0], self.siblings[1:]
            address = f"{self._uploads}?mount={quote(self.blob.digest)}&from={quote(sibling, safe='')}"
            with self.registry.ask("POST", address, good={201, 202, *MOUNT_REFUSED}) as response:
                if response.status_code == httpx.codes.CREATED:
                    self._confirmed(response)
                    return True
                if response.status_code == httpx.codes.ACCEPTED:
                    self._opened(response)  # the answer is an upload instead
            if self.location and self.siblings:
                spare, self.location = self.location, ""
                cancel(self.registry, spare)
        return False

    def _begin(self) -> None:
        if self.location:
            return
        with self.registry.ask("POST", self._uploads, good={202}) as response:
            self._opened(response)

    def _opened(self, response: httpx.Response) -> None:
        self._located(response, "")
        stated = response.headers.get("OCI-Chunk-Min-Length", "")
        self.least = int(stated[:15]) if stated.isdecimal() else 0
        self.offset, self.begun, self.pieced = 0, True, False

    def _continue(self) -> None:
        """The next chunk."""
        size = max(self.least, self.chunk if self.offset else min(FIRST, self.chunk))
        stop = min(self.blob.size, self.offset + size)
        headers = {"Content-Range": f"{self.offset}-{stop - 1}", "Content-Length": str(stop - self.offset), **OCTETS}
        good = {201, 202, 204, 404, 416, *CHUNK_REFUSED}
        content = partial(self.read, self.offset, stop)
        with self.registry.ask("PATCH", self.location, headers, content=content, good=good) as response:
            if response.status_code in CHUNK_REFUSED:
                self.whole = True
            if response.status_code >= httpx.codes.BAD_REQUEST:
                raise AgainError(f"the registry refuses bytes {self.offset} to {stop}: {response.status_code}")
            self._located(response, self.location)
            has = reported(response)
        if has is not None and not self.offset < has <= stop:
            raise AgainError(f"the registry has {has} bytes, not {stop}")
        before, self.offset = self.offset, stop if has is None else has
        self.furthest = max(self.furthest, self.offset)
        self.note.write(self.location, self.least)
        self.arrived(self.offset)
        if self.offset < min(stop, before + FLOOR):
            raise AgainError(f"the registry took {self.offset - before} bytes of {stop - before}")

    def _close(self, start: int) -> None:
        """The rest, and the digest."""
        address = f"{self.location}{'&' if '?' in self.location else '?'}digest={quote(self.blob.digest)}"
        rest = self.blob.size - start
        headers = {"Content-Length": str(rest), **OCTETS} if rest else {"Content-Length": "0"}
        content = partial(self.read, start, self.blob.size) if rest else b""
        good = {201, 204, 400, 404, 416}
        with self.registry.ask("PUT", address, headers, content=content, good=good, timeout=COMMIT) as response:
            if response.status_code >= httpx.codes.BAD_REQUEST:
                why = said(response)
                if "DIGEST_INVALID" in why:
                    if not self.pieced:
                        raise self._other(f"the registry got other bytes than those of {self.blob.digest}{why}")
                    self.location = ""  # once more from the beginning, which tells
                raise AgainError(f"the registry has lost the upload: {response.status_code}{why}")
            self._confirmed(response)

    def _confirmed(self, response: httpx.Response) -> None:
        """HashMismatchError if the registry names another digest; it need not name any."""
        found = response.headers.get("Docker-Content-Digest", self.blob.digest)
        if found != self.blob.digest:
            raise self._other(f"the registry took {self.blob.digest} for {found[:100]}")

    def _other(self, what: str) -> HashMismatchError:
        remedy = f"./inv verify {ROW} says whether the blob is damaged here; if not, find out what lies on the way"
        return HashMismatchError(what, where=self.registry.where, remedy=remedy)

    def _located(self, response: httpx.Response, before: str) -> None:
        self.location = located(self.registry, response, before)

    @property
    def _uploads(self) -> str:
        return f"{self.registry.reference.address}/blobs/uploads/"
