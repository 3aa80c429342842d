"""The cache folder: where it is, what survives a kill, who may write at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from torchkiln import home as homes
from torchkiln.errors import HostError


def test_home_follows_the_environment() -> None:
    """TORCHKILN_HOME moves everything; else XDG_CACHE_HOME, else ~/.cache."""
    assert homes.locate({"TORCHKILN_HOME": "/x", "HOME": "/h"}).root == Path("/x")
    assert homes.locate({"XDG_CACHE_HOME": "/c", "HOME": "/h"}).root == Path("/c/torchkiln")
    assert homes.locate({"HOME": "/h"}).root == Path("/h/.cache/torchkiln")


def test_home_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    """A file in the way, or a read-only disk, is said before any work starts."""
    (tmp_path / "home").write_text("a file")
    with pytest.raises(HostError, match="cannot be written") as caught:
        homes.prepare(homes.Home(tmp_path / "home"))
    assert str(tmp_path / "home") in caught.value.where
    assert "TORCHKILN_HOME" in caught.value.remedy


def test_damaged_index_entry_is_no_entry(home: homes.Home) -> None:
    """What can't be read is forgotten, and made again."""
    home.record("wheel-1", {"digest": "x"})
    assert home.lookup("wheel-1") == {"digest": "x"}
    (home.index / "wheel-1.json").write_text("{")
    assert home.lookup("wheel-1") is None
    assert not (home.index / "wheel-1.json").exists()


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replacing is all or nothing, and no temporary file stays."""
    path = tmp_path / "f"
    homes.write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(HostError, match="the disk is full"):
        homes.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def _hold(root: Path, ready: str) -> None:
    with homes.Home(root).lock("busy"):
        Path(ready).touch()
        time.sleep(60)


def test_lock_of_a_killed_process_is_free(home: homes.Home, tmp_path: Path) -> None:
    """SIGKILL of a holder does not block the next run."""
    ready = tmp_path / "ready"
    holder = multiprocessing.get_context("spawn").Process(target=_hold, args=(home.root, str(ready)))
    holder.start()
    while not ready.exists():
        time.sleep(0.01)
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    with home.lock("busy"):
        pass
    holder.join()
    holder.close()


def test_who_waits_for_a_lock_says_so(home: homes.Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Another build may take minutes, and silence looks like a fault."""

    def wait() -> None:
        with home.lock("busy"):
            pass

    with home.lock("busy"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        said = ""
        for _ in range(1000):
            said += capsys.readouterr().err
            if "waiting for another program" in said:
                break
            time.sleep(0.01)
    waiting.join()
    assert str(home.root) in said
    with home.lock("busy"):
        pass
    assert not capsys.readouterr().err
