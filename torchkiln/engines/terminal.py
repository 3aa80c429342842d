"""Give a sandboxed command a terminal of its own and connect it to ours.

Sharing ours would let the image type into it after it ends, and leave the shell inside without job control.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import struct
import sys
import termios
import tty
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE = 1 << 16


@contextmanager
def pair() -> Iterator[tuple[int, int]]:
    """Our side and the command's side of a new terminal."""
    ours, theirs = os.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        with suppress(OSError):  # closed once the command had it
            os.close(theirs)


def connect(other: int, resize: Callable[[int, int], object]) -> None:
    """Pass keys and output to and fro until the other side is closed; `resize` learns of our rows and columns."""
    with ExitStack() as stack:
        keys = sys.stdin.fileno()
        stack.callback(termios.tcsetattr, keys, termios.TCSAFLUSH, termios.tcgetattr(keys))
        tty.setraw(keys)
        before = signal.signal(signal.SIGWINCH, lambda *_: resize(*_size()))
        stack.callback(signal.signal, signal.SIGWINCH, before)
        resize(*_size())
        waiting = stack.enter_context(selectors.DefaultSelector())
        waiting.register(keys, selectors.EVENT_READ, other)
        waiting.register(other, selectors.EVENT_READ, sys.stdout.fileno())
        open_ = True
        while open_:
            for key, _ in waiting.select():
                if not _pass(key.fd, key.data):
                    waiting.unregister(key.fd)
                    open_ = open_ and key.fd != other


def _pass(source: int, target: int) -> bool:
    try:
        piece = os.read(source, PIECE)
    except OSError:  # a terminal whose other side is closed
        return False
    left = memoryview(piece)
    while left:
        left = left[os.write(target, left) :]
    return bool(piece)


def _size() -> tuple[int, int]:
    columns, rows = os.get_terminal_size(sys.stdin.fileno())
    return rows, columns


def set_size(terminal: int, rows: int, columns: int) -> None:
    """Tell a terminal, and so the programs on it, how large it is."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
