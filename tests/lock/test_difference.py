from __future__ import annotations

from dataclasses import replace

from torchkiln.lock import difference, lockfile
from torchkiln.lock.lockfile import Inputs, Lock, Pin
from torchkiln.lock.sections import LockFile


def pin(name: str, version: str = "1", size: int | None = 1_000_000, build: str = "") -> Pin:
    """A wheel that exists on paper."""
    filename = f"{name}-{version}{build}-py3-none-any.whl"
    return Pin(name=name, version=version, sha256="0" * 64, filename=filename, size=size)


def lock(*pins: Pin) -> Lock:
    """A lock of these pins."""
    return lockfile.make(Inputs(), pins, "uv 1")


BEFORE = LockFile(
    common=lock(pin("gone"), pin("kept"), pin("moved"), pin("rebuilt")), sections={"old": lock(pin("tool"))}
)
AFTER = LockFile(
    common=lock(pin("kept"), pin("moved", "2", 3_000_000), pin("new", size=None), pin("rebuilt", build="-2")),
    sections={"devel": lock(pin("cmake"))},
)


def test_every_kind_of_change_is_told() -> None:
    """Added, removed, another version, another file of the same version; with sizes, as far as they are known."""
    found = difference.difference("row.txt", BEFORE, AFTER)
    assert difference.plain(found).splitlines() == [
        "row.txt: 1 removed, 1 changed, 1 added, 1 replaced, size unknown",
        "  removed  gone 1 (-1.0 MB)",
        "  changed  moved 1 -> 2 (+2.0 MB)",
        "  added    new 1 (size unknown)",
        "  replaced rebuilt 1: rebuilt-1-py3-none-any.whl -> rebuilt-1-2-py3-none-any.whl (+0.0 MB)",
        "row.txt, devel: 1 added, +1.0 MB",
        "  added    cmake 1 (+1.0 MB)",
        "row.txt, old: 1 removed, -1.0 MB",
        "  removed  tool 1 (-1.0 MB)",
    ]


def test_a_pull_request_gets_a_table() -> None:
    """The same as Markdown, with what stayed as it was named at the end."""
    found = [
        *difference.difference("row.txt", BEFORE, replace(AFTER, sections=BEFORE.sections)),
        *difference.difference("same.txt", BEFORE, replace(BEFORE, sections={})),
    ]
    assert difference.markdown(found[:-1]).splitlines() == [
        "### `row.txt`",
        "",
        "1 removed, 1 changed, 1 added, 1 replaced, size unknown",
        "",
        "| package | | before | after | size |",
        "|---|---|---|---|---:|",
        "| gone | removed | 1 |  | -1.0 MB |",
        "| moved | changed | 1 | 2 | +2.0 MB |",
        "| new | added |  | 1 | size unknown |",
        "| rebuilt | replaced | 1 (`rebuilt-1-py3-none-any.whl`) | 1 (`rebuilt-1-2-py3-none-any.whl`) | +0.0 MB |",
        "",
        "Nothing changed in `row.txt, old`, `same.txt`.",
    ]


def test_a_lock_that_is_not_there_yet_is_all_new() -> None:
    """A first lock lists everything as added."""
    (part,) = difference.difference("row.txt", LockFile(), LockFile(common=lock(pin("one"), pin("two"))))
    assert [change.kind for change in part.changes] == ["added", "added"]


def test_a_part_that_was_just_created_says_so_though_it_pins_nothing() -> None:
    """An addition that the row has already brings no wheel, and its lock is a new one all the same."""
    after = replace(BEFORE, sections={**BEFORE.sections, "devel": lock()})
    found = difference.difference("row.txt", BEFORE, after)
    told = difference.plain(found).splitlines()
    assert told == [
        "row.txt: nothing changed",
        "row.txt, devel: created, with no wheel of its own",
        "row.txt, old: nothing changed",
    ]
    assert "### `row.txt, devel`\n\ncreated, with no wheel of its own\n\nNothing changed in" in difference.markdown(
        found
    )
