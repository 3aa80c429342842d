"""A lock is complete when everything that its row and its wheels ask for is pinned."""

from __future__ import annotations

import pytest

from torchkiln.errors import LockError
from torchkiln.lock import closure, lockfile
from torchkiln.lock.lockfile import Inputs, Lock, Pin


def toy_lock(*requirements: str, **pins: str) -> Lock:
    """A lock for requirements, of wheels that exist nowhere."""
    asked = Inputs(requirements=requirements, python="3.11", platform="x86_64 glibc 2.36")
    made = [
        Pin(name=name, version=version, sha256="0" * 64, filename=f"{name}-{version}-py3-none-any.whl", size=1)
        for name, version in pins.items()
    ]
    return lockfile.make(asked, made, "uv")


CHAIN = {
    "one": ("two>=2", "absent; python_version < '3.9'", "gone; sys_platform == 'win32'", "late; extra == 'more'"),
    "two": ("three[fast]; platform_machine == 'x86_64' and python_full_version >= '3.11.2'",),
    "three": ("four<5; extra == 'fast'", "five; extra == 'slow'"),
}


def test_a_lock_in_which_everything_is_pinned_is_complete() -> None:
    """Markers of other Pythons and machines, and extras that nobody asks for, need no pin."""
    closure.check(toy_lock("one==1", one="1+cpu", two="2", three="3", four="4"), CHAIN, python="3.11.2", target="row")
    closure.check(toy_lock("one==1", one="1", two="2.0"), {**CHAIN, "two": ()}, python="3.11", target="row")


@pytest.mark.parametrize(
    ("lock", "told"),
    [
        (toy_lock("one==1", one="1", two="2", three="3"), "three[fast] needs four<5, and no four is pinned"),
        (toy_lock("one==1", one="1", two="2", three="3", four="5"), "three[fast] needs four<5, and four 5 is pinned"),
        (toy_lock("one==1", one="1", three="3", four="4"), "one needs two>=2, and no two is pinned"),
        (toy_lock("one==1", one="1", two="1", three="3", four="4"), "one needs two>=2, and two 1 is pinned"),
        (toy_lock("one==1", "six", two="2", three="3", four="4"), "the row needs six, and no six is pinned"),
        (toy_lock("one[more]==1", one="1", two="2", three="3", four="4"), "one[more] needs late, and no late is"),
    ],
)
def test_a_pin_that_is_needed_and_not_there_is_named(lock: Lock, told: str) -> None:
    """The error says what is missing, in which versions, and who needs it, be it only through an extra."""
    with pytest.raises(LockError) as raised:
        closure.check(lock, CHAIN, python="3.11.2", target="row")
    assert told in raised.value.what
    assert raised.value.remedy == "./inv lock --target row"


def test_a_requirement_that_is_none_is_told() -> None:
    """Metadata that cannot be read is never a requirement fulfilled."""
    with pytest.raises(LockError, match="one asks for '>> 2', which is not a requirement"):
        closure.check(toy_lock(one="1"), {"one": (">> 2",)}, python="3.11", target="row")
