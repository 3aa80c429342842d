"""Whoever sends next to nothing is as good as silent, however regularly it comes."""

from __future__ import annotations

import httpcore
import httpx
import pytest

from torchkiln import network, pace
from torchkiln.pace import FLOOR


class Slow(httpcore.NetworkStream):
    """A connection on which each read takes its time by a clock of its own."""

    def __init__(self, size: int = 1, seconds: float = 1) -> None:
        self.size, self.seconds, self.now = size, seconds, 0.0
        self.given: list[float | None] = []
        """How long each read might have taken."""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """As many bytes as ever."""
        self.given.append(timeout)
        self.now += self.seconds
        return bytes(min(max_bytes, self.size))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Gone."""


def paced(slow: Slow) -> pace.Stream:
    """The same, watched."""
    return pace.Stream(slow, lambda: slow.now)


def test_bytes_now_and_then_are_silence() -> None:
    """All of them together get the time that a single one would have."""
    slow = Slow()
    stream = paced(slow)
    for _ in range(4):
        stream.read(100, 4)
    with pytest.raises(httpcore.ReadTimeout, match="only 4 bytes came in 4 seconds"):
        stream.read(100, 4)
    assert slow.given == [4, 3, 2, 1]


def test_who_sends_enough_has_time_again() -> None:
    """However large the whole is; half of it is not enough."""
    enough, half = paced(Slow(FLOOR)), paced(Slow(FLOOR // 2, seconds=3))
    for _ in range(100):
        enough.read(FLOOR, 2)
    half.read(FLOOR, 2)
    with pytest.raises(httpcore.ReadTimeout):
        half.read(FLOOR, 2)


def test_each_question_has_an_answer_of_its_own() -> None:
    """What was waited for before, on the same connection, does not count."""
    stream = paced(Slow())
    for _ in range(100):
        stream.write(b"and now?", 2)
        stream.read(100, 2)
        stream.read(100, 2)


def test_time_that_we_take_is_not_the_server_s() -> None:
    """A disk may be slow, and so may what a blob is passed on to."""
    slow = Slow()
    stream = paced(slow)
    for _ in range(2):
        stream.read(100, 3)
        slow.now += 1000
    assert slow.given == [3, 2]


def test_without_patience_there_is_no_end_to_it() -> None:
    """As with httpcore itself."""
    stream = paced(Slow())
    for _ in range(1000):
        stream.read(100)


def test_what_is_read_as_a_whole_has_an_end_in_time() -> None:
    """Also where enough comes at a time: a small document may be sent for hours so."""
    slow = Slow(FLOOR, seconds=30)
    pieces = (paced(slow).read(FLOOR, 60) for _ in range(1000))
    with pytest.raises(httpx.ReadTimeout, match="no end"):
        network.bounded(pieces, 1 << 30, lambda: slow.now)
    assert slow.now < network.WHOLE + 60
