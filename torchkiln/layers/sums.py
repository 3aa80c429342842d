"""Has sums see plain bytes: at once, or in a thread beside, so that another processor hashes while one inflates.

Both hashlib and the decoders let go of the interpreter's lock, so two threads do take two processors where there are
any to spare: at the end of a build, when a single large wheel is left. Where there are none it costs little.
"""

from __future__ import annotations

from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Show = Callable[[memoryview], None]


class Sum(Protocol):
    """Something that sees the plain bytes pass, such as a hash of hashlib."""

    def update(self, data: memoryview, /) -> None:
        """See more bytes."""


@contextmanager
def shown_to(sums: Sequence[Sum], *, unseen: int = 0) -> Iterator[Show]:
    """What is called with every piece; each sum has seen all of them in order when the body is left.

    With `unseen`, in a thread: up to so many pieces have not been seen yet when it returns, and must stay as they are.
    """
    if unseen and sums:
        with _aside(sums, unseen) as show:
            yield show
    else:
        yield lambda piece: _see(sums, piece)


def _see(sums: Sequence[Sum], piece: memoryview) -> None:
    for each in sums:
        each.update(piece)


@contextmanager
def _aside(sums: Sequence[Sum], unseen: int) -> Iterator[Show]:
    pieces: SimpleQueue[memoryview | None] = SimpleQueue()
    free: SimpleQueue[None] = SimpleQueue()
    errors: list[Exception] = []
    for _ in range(unseen):
        free.put(None)

    def work() -> None:
        while (piece := pieces.get()) is not None:
            try:
                _see(sums, piece)
            except Exception as error:  # noqa: BLE001  raised where the pieces come from
                errors.append(error)
            free.put(None)

    def show(piece: memoryview) -> None:
        free.get()
        pieces.put(piece)

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        yield show
    finally:
        pieces.put(None)
        thread.join()
    if errors:
        raise errors[0]
