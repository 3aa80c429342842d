"""The committed locks held against the rows, by files alone."""

from __future__ import annotations

import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

import tasks
from torchkiln import process
from torchkiln.errors import LockError, StaleLockError
from torchkiln.lock import audit, lockfile, sections
from torchkiln.matrix import schema

ROOT = Path(__file__).parents[2]
MATRIX = schema.load(ROOT / "matrix.yaml").targets
ROW = next(row for row in MATRIX if row.id == "torch25-cu124")


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    """The committed lock of one row, to be broken."""
    folder = tmp_path / "locks"
    folder.mkdir()
    for name in (ROW.lock_name, ROW.base.lock_name):
        shutil.copy(ROOT / "images/locks" / name, folder / name)
    return folder


def test_the_committed_locks_are_those_of_the_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`./inv lock --check` holds every row against its lock, without network and without starting a program."""

    def forbidden(*_: object, **__: object) -> NoReturn:
        raise AssertionError("it asked somebody")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, forbidden)
    for name in ("run", "start"):
        monkeypatch.setattr(process, name, forbidden)
    tasks.lock.body(None, target=[], check=True)
    said = capsys.readouterr().out
    assert "unlocked" in said
    assert said.splitlines()[-1].endswith(" unlocked")


def test_rows_that_use_the_same_parts_are_one_finding(locks: Path) -> None:
    """Rows for several GPUs share a lock and its faults; all of them are counted."""
    alike = [row for row in MATRIX if row.lock_name == ROW.lock_name and not row.flavour.requirements]
    assert len(alike) > 1
    assert len(audit.audit(locks, alike, alike).locked) == len(alike)
    assert f"{len(alike)} rows are locked, 0 unlocked" in audit.plain(audit.audit(locks, alike, alike))
    assert "1 row is locked, 0 unlocked" in audit.plain(audit.audit(locks, alike, alike[:1]))
    (locks / ROW.lock_name).write_text("rubbish\n")
    assert len(audit.audit(locks, alike, alike).problems) == 1


def test_a_row_without_a_lock_is_no_error(locks: Path) -> None:
    """It is listed with what is missing; so is one whose base has no package list."""
    other = next(row for row in MATRIX if row.lock_name != ROW.lock_name)
    found = audit.audit(locks, [ROW, other], [ROW, other])
    assert f"unlocked: {other.id}: there is no images/locks/{other.lock_name}\n" in audit.plain(found)
    (locks / ROW.base.lock_name).unlink()
    assert f"unlocked: {ROW.id}: there is no package list" in audit.plain(audit.audit(locks, [ROW], [ROW]))
    audit.refuse(found)


def test_a_lock_is_held_against_its_row_before_its_base_has_a_list(locks: Path) -> None:
    """A base whose archive can't be reached hides no stale lock."""
    (locks / ROW.base.lock_name).unlink()
    stale = replace(ROW, release=replace(ROW.release, companions=("numpy>=3",)))
    assert len(audit.audit(locks, [stale], [stale]).problems) == 1
    assert audit.audit(locks, [ROW], [ROW]).problems == ()


def test_everything_wrong_is_told_at_once(locks: Path) -> None:
    """A stale lock, a file and a section that no row uses: one error, with what to do about each."""
    (locks / "torch1-cpu-py2.7-x86_64.txt").write_text("")
    file = sections.read(locks / ROW.lock_name)
    assert file.common
    more = replace(file, sections={"devil": lockfile.make(file.common.asked, [], "uv 1")})
    (locks / ROW.lock_name).write_text(sections.render(more))
    stale = replace(ROW, release=replace(ROW.release, companions=("numpy>=3",)))
    found = audit.audit(locks, [stale], [stale])
    with pytest.raises(StaleLockError) as raised:
        audit.refuse(found)
    assert "3 locks are not what the rows need" in raised.value.what
    for told in ("now asks for numpy>=3", "torch1-cpu-py2.7-x86_64.txt is no row's lock", "no row uses section devil"):
        assert told in raised.value.what
    assert "./inv lock --target torch25-cu124; git rm images/locks/torch1-cpu" in raised.value.remedy


def test_a_base_that_asks_for_more_is_told_once(locks: Path) -> None:
    """Though rows with other wheels share it: what changed, and a command that names a row."""
    other = next(
        row
        for row in MATRIX
        if row.base == ROW.base
        and (ROOT / "images/locks" / row.lock_name).exists()
        and row.lock_name != ROW.lock_name
        and not row.flavour.requirements
    )
    shutil.copy(ROOT / "images/locks" / other.lock_name, locks / other.lock_name)
    assert len(audit.audit(locks, MATRIX, [ROW, other]).locked) == 2
    base = replace(ROW.base, packages=(*ROW.base.packages, "curl"))
    found = audit.audit(locks, MATRIX, [replace(row, base=base) for row in (ROW, other)])
    assert found.locked == ()
    with pytest.raises(StaleLockError) as raised:
        audit.refuse(found)
    told = "1 lock is not what the rows need:\n  base-bookworm.txt is stale: packages: + curl"
    assert (raised.value.what, raised.value.remedy) == (told, "./inv lock --target torch25-cu124 --base")


def test_a_lock_of_another_row_does_not_fit(locks: Path) -> None:
    """Pins are held against versions, variant and platform, though the inputs are right."""
    text = (locks / ROW.lock_name).read_text()
    (locks / ROW.lock_name).write_text(text.replace("cp311-cp311", "cp312-cp312"))
    with pytest.raises(LockError, match="no wheel for Python"):
        audit.refuse(audit.audit(locks, [ROW], [ROW]))


def test_orphans_are_looked_for_only_among_all_rows(locks: Path) -> None:
    """A check of some rows says nothing about files of others."""
    (locks / "torch1-cpu-py2.7-x86_64.txt").write_text("")
    assert audit.audit(locks, [ROW], [ROW], orphans=False).problems == ()
    assert len(audit.audit(locks, [ROW], [ROW]).problems) == 1


def test_hashes_with_a_single_source_are_marked(locks: Path) -> None:
    """A reader sees which locks rest on somebody's word alone."""
    file = sections.read(locks / ROW.lock_name)
    assert file.common
    said = {"torch": f"facts.yaml, {lockfile.UNCONFIRMED}: somebody"}
    common = lockfile.make(file.common.asked, file.common.pins, file.common.resolver, said.items())
    (locks / ROW.lock_name).write_text(sections.render(replace(file, common=common)))
    found = audit.audit(locks, [ROW], [ROW])
    assert f"hashes with a single source, unconfirmed: {ROW.lock_name}: torch\n" in audit.plain(found)
    audit.refuse(found)
