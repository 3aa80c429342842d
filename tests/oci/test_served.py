"""What a registry serves is held against the manifest, by size or by every byte; all that is wrong is told at once."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from tests import toyregistry
from tests.oci.test_push import LARGE, SMALL
from torchkiln.errors import FetchError, VerifyError
from torchkiln.oci import digest as digests
from torchkiln.oci import served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.toyregistry import Toy
    from torchkiln.oci.served import Served

FIRST, SECOND = (digests.of_bytes(gzip.compress(data, mtime=0)) for data in (SMALL, LARGE))


@pytest.fixture
def toy() -> Iterator[Toy]:
    """A registry on loopback."""
    with toyregistry.serving() as found:
        yield found


def checked(toy: Toy, digest: str, *, whole: bool) -> Served:
    """What a look at it gives."""
    seen = served.look(toy.at(digest), environment={"NETRC": "/nonexistent"}, whole=whole)
    return served.held(seen, toy.at(digest))


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_whole_is_said_to_be(toy: Toy, *, whole: bool) -> None:
    """Of an image and of an index; each blob is looked at once, and read only if all bytes are asked for."""
    one, both = toy.add(SMALL), toy.add(SMALL, LARGE)
    assert checked(toy, one, whole=whole).blobs == 2
    found = checked(toy, toy.index({"amd64": one, "arm64": both}), whole=whole)
    assert found.blobs == 4
    assert found.read == (sum(len(data) for data in toy.blobs.values()) if whole else 0)


def test_all_that_is_wrong_is_told(toy: Toy) -> None:
    """What is missing, and what has another size, without reading any."""
    digest = toy.add(SMALL, LARGE)
    del toy.blobs[FIRST]
    toy.blobs[SECOND] += b"more"
    with pytest.raises(VerifyError) as raised:
        checked(toy, digest, whole=False)
    assert f"{FIRST} is missing" in raised.value.what
    assert f"{SECOND} has {len(toy.blobs[SECOND])} bytes" in raised.value.what
    assert raised.value.where == toy.at(digest)


@pytest.mark.parametrize("fault", ["other", "longer"])
def test_other_bytes_are_seen_by_who_reads_them(toy: Toy, fault: str) -> None:
    """A size says nothing about what comes."""
    digest = toy.add(SMALL, LARGE)
    toy.faults[SECOND] = ["", "cut", fault]
    assert checked(toy, digest, whole=False).read == 0
    toy.faults[SECOND] = ["", fault]
    with pytest.raises(VerifyError, match=SECOND):
        checked(toy, digest, whole=True)


def test_reading_goes_on_after_a_reset(toy: Toy) -> None:
    """From where it broke, hashed as one."""
    digest = toy.add(SMALL, LARGE)
    toy.faults[SECOND] = ["", "cut"]
    assert checked(toy, digest, whole=True).read == sum(len(data) for data in toy.blobs.values())
    assert any(kind.startswith("bytes=") for path, kind in toy.asked if SECOND in path)


def test_an_image_that_is_not_there_is_told(toy: Toy) -> None:
    """By the registry's own words."""
    with pytest.raises(FetchError, match="404"):
        checked(toy, FIRST, whole=False)
