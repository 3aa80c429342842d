"""Blobs on their way to a repository: each once, some at a time, and the first failure ends all."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from torchkiln import console
from torchkiln.errors import HashMismatchError
from torchkiln.oci.passing import Passing
from torchkiln.oci.registry import connected
from torchkiln.oci.upload import CHUNK, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor
    from pathlib import Path

    from torchkiln.errors import TorchkilnError
    from torchkiln.oci.digest import Digest
    from torchkiln.oci.image import Descriptor
    from torchkiln.oci.reference import Destination
    from torchkiln.oci.registry import Registry
    from torchkiln.oci.upload import How, Read

    Sleep = Callable[[float], object]

TOLD = 256 << 20
"""Bytes of a blob after which its progress is told again."""
WORTH_TELLING = 4 << 20
"""Bytes of a blob that is told of at all."""


@dataclass(slots=True, kw_only=True)
class Delivery:
    """Blobs that are sent, in the order in which they were submitted."""

    registry: Registry
    siblings: Sequence[str]
    chunk: int
    notes: Path | None
    """Where it is noted how uploads that broke off can be gone on with."""
    _pool: ThreadPoolExecutor
    _futures: dict[Digest, tuple[Descriptor, Future[How]]] = field(default_factory=dict)
    _failure: BaseException | None = None
    _done: int = 0
    _all: bool = False
    """Whether nothing more is to come, so that it is known how many there are."""
    _told: threading.Lock = field(default_factory=threading.Lock)

    def submit(self, blob: Descriptor, read: Read, *, anew: bool = False) -> None:
        """Begin to send a blob, unless that was done before; raises what went wrong with another.

        `anew` sends it though the registry has it.
        """
        self._refuse()
        if blob.digest not in self._futures:
            self._all = False
            self._futures[blob.digest] = (blob, self._pool.submit(self._send, blob, read, anew=anew))

    def wait(self) -> list[tuple[Descriptor, How]]:
        """What was done for each blob, when all is done; raises the first failure as soon as it is there."""
        self._all = True
        wait([future for _, future in self._futures.values()], return_when="FIRST_EXCEPTION")
        self._refuse()
        return [(blob, future.result()) for blob, future in self._futures.values()]

    def _refuse(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _send(self, blob: Descriptor, read: Read, *, anew: bool) -> How:
        try:
            how = send(
                self.registry,
                blob,
                partial(self._until, read),
                siblings=self.siblings,
                chunk=self.chunk,
                arrived=partial(self._arrived, blob, []),
                notes=self.notes,
                anew=anew,
            )
        except BaseException as error:
            found = _blamed(error, read)
            with self._told:
                self._failure = self._failure or found
            self.registry.hang_up()
            if found is error:
                raise
            raise found from error
        with self._told:
            self._done += 1
            last = self._all and self._done == len(self._futures)
            if how != "there" and (blob.size >= WORTH_TELLING or last):
                count = f"{self._done} of {len(self._futures)}" if self._all else f"{self._done} done"
                console.note(f"{how}: {blob.digest[:19]}, {blob.size / 1e6:.1f} MB ({count})")
        return how

    def _until(self, read: Read, start: int, stop: int) -> Iterator[bytes]:
        for piece in read(start, stop):
            self.registry.go_on()
            yield piece

    def _arrived(self, blob: Descriptor, told: list[int], offset: int) -> None:
        """Say how far a blob is, from time to time."""
        self.registry.go_on()
        if offset - max(told, default=0) >= TOLD:
            told.append(offset)
            console.note(f"{blob.digest[:19]}: {offset / 1e6:.0f} of {blob.size / 1e6:.0f} MB")


def _blamed(error: BaseException, read: Read) -> BaseException:
    """What went wrong: if the registry got other bytes, it may be that another one has served them."""
    if isinstance(error, HashMismatchError) and isinstance(read, Passing) and error.where != read.source.where:
        return read.doubted() or error
    return error


@contextmanager
def delivering(
    place: Destination,
    environment: Mapping[str, str],
    *,
    failure: type[TorchkilnError],
    siblings: Sequence[str] = (),
    sleep: Sleep | None = None,
    chunk: int = CHUNK,
    notes: Path | None = None,
    source: Registry | None = None,
) -> Iterator[Delivery]:
    """What may send blobs to a repository; leaving it gives up what was not waited for, whatever it is doing.

    `source` is who serves some of the blobs: it is not waited for then either.
    """
    scopes = (f"repository:{place.repository}:pull,push", *(f"repository:{name}:pull" for name in siblings))
    with (
        connected(place, environment, sleep, scopes=scopes, failure=failure) as registry,
        registry.threads() as pool,
    ):
        try:
            yield Delivery(registry=registry, siblings=siblings, chunk=chunk, notes=notes, _pool=pool)
        finally:
            for each in (registry, source) if source else (registry,):
                each.hang_up()
