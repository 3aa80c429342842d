"""Whoever has hung up waits for nobody, except to tidy up."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests import toyregistry
from tests.toyregistry import REPOSITORY, Toy
from torchkiln.oci import reference, registry
from torchkiln.oci.session import BRIEF, HaltedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchkiln.oci.registry import Registry


@pytest.fixture
def toy() -> Iterator[Toy]:
    """A registry on loopback."""
    with toyregistry.serving() as found:
        yield found


@pytest.fixture
def connected(toy: Toy) -> Iterator[Registry]:
    """A session with it that somebody has ended."""
    place = reference.destination(f"{toy.host}/{REPOSITORY}")
    with registry.connected(place, {"NETRC": "/nonexistent"}, sleep=lambda _seconds: None) as found:
        found.hang_up()
        yield found


class Stream:
    """As httpcore has it."""

    def __init__(self, ours: socket.socket) -> None:
        self.ours = ours

    def get_extra_info(self, what: str) -> socket.socket:
        """The socket, whatever is asked for."""
        assert what == "socket"
        return self.ours


@pytest.mark.parametrize("tidying", [False, True])
def test_a_connection_that_was_being_made_is_shut_too(connected: Registry, *, tidying: bool) -> None:
    """It comes too late to be among those that were shut; one that tidies up is let be."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(0)
        connected._traced("connection.connect_tcp.complete", {"return_value": Stream(ours)}, tidying=tidying)
        if tidying:
            with pytest.raises(BlockingIOError):
                theirs.recv(1)
        else:
            assert theirs.recv(1) == b""


def test_only_who_tidies_up_asks(connected: Registry, toy: Toy) -> None:
    """Anything else might wait for a minute."""
    address = f"{connected.reference.address}/blobs/uploads/none"
    with pytest.raises(HaltedError), connected.ask("GET", address, good={404}):
        pass
    assert toy.asked == []
    with connected.ask("GET", address, good={404}, timeout=BRIEF) as response:
        assert response.status_code == 404
