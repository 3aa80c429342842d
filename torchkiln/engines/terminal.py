"""Give a sandboxed command a terminal of its own and connect it to ours.

Sharing ours would let the image type into it after it ends, and leave the shell inside without job control.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import sys
import termios
import tty
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchkiln.engines.child import Child

PIECE = 1 << 16


@contextmanager
def pair() -> Iterator[tuple[int, int]]:
    """Our side and the command's side of a new terminal, as large as ours."""
    ours, theirs = os.openpty()
    try:
        _resize(ours)
        yield ours, theirs
    finally:
        os.close(ours)
        with suppress(OSError):  # closed once the command had it
            os.close(theirs)


def connect(child: Child, ours: int) -> None:
    """Pass keys and output to and fro until the command ends."""
    with ExitStack() as stack:
        keys = sys.stdin.fileno()
        before = termios.tcgetattr(keys)
        stack.callback(termios.tcsetattr, keys, termios.TCSAFLUSH, before)
        tty.setraw(keys)
        changed = signal.signal(signal.SIGWINCH, lambda *_: _resize(ours))
        stack.callback(signal.signal, signal.SIGWINCH, changed)
        waiting = stack.enter_context(selectors.DefaultSelector())
        waiting.register(keys, selectors.EVENT_READ, ours)
        waiting.register(ours, selectors.EVENT_READ, sys.stdout.fileno())
        while child.popen.poll() is None or waiting.select(0):
            for key, _ in waiting.select(0.5):
                if not _pass(key.fd, key.data):
                    if key.fd == ours:
                        return
                    waiting.unregister(key.fd)


def _pass(source: int, target: Any) -> bool:  # noqa: ANN401  a selector's own data
    try:
        piece = os.read(source, PIECE)
    except OSError:  # a terminal whose other side is closed
        return False
    while piece:
        written = os.write(target, piece)
        if written == len(piece):
            return True
        piece = piece[written:]
    return False


def _resize(ours: int) -> None:
    with suppress(OSError):
        size = fcntl.ioctl(sys.stdin.fileno(), termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(ours, termios.TIOCSWINSZ, size)
