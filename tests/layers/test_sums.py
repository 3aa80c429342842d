"""Sums see every piece, in order, wherever they do so."""

from __future__ import annotations

import threading

import pytest

from torchkiln.layers.sums import shown_to

PIECES = [bytes([number]) * 3 for number in range(50)]


class Seen:
    """Remembers what it saw, and in which thread."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.threads: set[threading.Thread] = set()

    def update(self, data: memoryview, /) -> None:
        """See more bytes."""
        self.pieces.append(bytes(data))
        self.threads.add(threading.current_thread())


class Slow(Seen):
    """Sees nothing before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def update(self, data: memoryview, /) -> None:
        """See more bytes."""
        self.go.wait()
        super().update(data)


class Broken(Seen):
    """Fails at the third piece."""

    def update(self, data: memoryview, /) -> None:
        """See more bytes."""
        super().update(data)
        if len(self.pieces) == 3:
            raise ValueError("cannot see that")


def show_all(to: Seen, unseen: int, error: Exception | None = None) -> None:
    """Show all pieces, and then raise the error, if there is one."""
    with shown_to([to], unseen=unseen) as show:
        for piece in PIECES:
            show(memoryview(piece))
        if error:
            raise error


@pytest.mark.parametrize("unseen", [0, 1, 3])
def test_every_sum_has_seen_every_piece_in_order(unseen: int) -> None:
    """When the body is left; aside means in one other thread."""
    sums = Seen(), Seen()
    with shown_to(sums, unseen=unseen) as show:
        for piece in PIECES:
            show(memoryview(piece))
    for each in sums:
        assert each.pieces == PIECES
        assert (each.threads == {threading.current_thread()}) == (not unseen)
        assert len(each.threads) == 1


def test_no_more_pieces_are_unseen_than_was_said() -> None:
    """A buffer that came so many pieces ago may be filled again."""
    slow, rooms = Slow(), [bytearray(3) for _ in range(4)]
    with shown_to([slow], unseen=3) as show:
        for number, piece in enumerate(PIECES):
            if number == 3:
                slow.go.set()  # three are under way, and the fourth has to wait for the first
            rooms[number % 4][:] = piece
            show(memoryview(rooms[number % 4]))
            assert len(slow.pieces) >= number - 3
    assert slow.pieces == PIECES


@pytest.mark.parametrize("unseen", [0, 3])
def test_an_error_of_a_sum_is_raised(unseen: int) -> None:
    """Where the pieces come from, and nothing waits for ever."""
    with pytest.raises(ValueError, match="cannot see that"):
        show_all(Broken(), unseen)


@pytest.mark.parametrize("unseen", [0, 3])
def test_an_error_of_the_body_is_raised_as_it_is(unseen: int) -> None:
    """And the thread has ended."""
    before = threading.active_count()
    with pytest.raises(KeyError):
        show_all(Seen(), unseen, KeyError())
    assert threading.active_count() == before
