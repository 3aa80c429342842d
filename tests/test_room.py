"""A disk that takes no more is told with its place, what is free, what is needed as far as known, and a way out."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from torchkiln import room
from torchkiln.commands.exits import guarded
from torchkiln.errors import HostError
from torchkiln.oci import digest as digests
from torchkiln.oci.image import LAYER_TYPE, Descriptor
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from pathlib import Path


def test_what_does_not_fit_is_refused_before_anything_is_written(full_disk: Path) -> None:
    """With the bytes that are needed and those that are free, the folder, and where its file system is mounted."""
    folder = full_disk / "home"
    folder.mkdir()
    room.check(folder, 40_000_000, "the wheels")
    with pytest.raises(HostError) as raised:
        room.check(folder, 2_500_000_000, "the wheels")
    assert raised.value.what == "the disk has no room for the wheels: 2.50 GB are needed, 41.9 MB are free"
    assert raised.value.where == f"{folder}, on the file system of {full_disk}"
    assert raised.value.remedy == room.REMEDY


def test_a_disk_that_fills_up_is_told_as_it_is_then(full_disk: Path) -> None:
    """What is free is said before what was half written is removed: else there would seem to be room."""
    store = Store(full_disk / "store")
    with pytest.raises(HostError, match=r"the disk is full while layers are written: 0\.\d MB are free") as raised:
        store.put(bytes(50 << 20), LAYER_TYPE)
    assert str(store.blobs) in raised.value.where
    assert list(store.blobs.iterdir()) == []


def test_a_store_says_what_is_missing_of_layers(full_disk: Path) -> None:
    """What it has needs no room."""
    store = Store(full_disk / "store")
    here = store.put(bytes(30 << 20), LAYER_TYPE)
    store.expect([here])
    other = Descriptor(media_type=LAYER_TYPE, digest=digests.of_bytes(b"other"), size=20 << 20)
    with pytest.raises(HostError, match=r"no room for the layers: 21\.0 MB are needed, 10\.\d MB are free"):
        store.expect([here, other])


@pytest.mark.parametrize("named", [True, False])
def test_any_other_write_that_finds_no_room_names_a_folder(
    full_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, named: bool
) -> None:
    """That of the file; if the system names none, the fuller one of the cache and the folder for temporary files."""
    monkeypatch.setenv("TORCHKILN_HOME", str(full_disk))

    @guarded
    def fail() -> None:
        name = (str(full_disk / "file"),) if named else ()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *name)

    with pytest.raises(SystemExit) as raised:
        fail()
    assert raised.value.code == HostError.exit_code
    said = capsys.readouterr().err
    assert f"where: {full_disk}\n" in said
    assert room.REMEDY in said
