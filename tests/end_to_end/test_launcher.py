"""`./inv` on a machine that has nothing yet: makes its environment from the lock, or says what to run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.kiln import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.network
TASKS = """
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from invoke.tasks import task

@task
def hello(_):
    print("hello")

@task
def encoding(_):
    print(sys.getfilesystemencoding())
    print(ProcessPoolExecutor(1, get_context("spawn")).submit(sys.getfilesystemencoding).result())
"""

STRIPPED = """
import importlib.util

find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "ensurepip" else find(name, package)
"""
"""What a Python is like whose distribution left ensurepip out."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The launcher with a lock of one package."""
    folder = tmp_path / "a checkout"
    folder.mkdir()
    shutil.copy(ROOT / "inv", folder)
    (folder / "tasks.py").write_text(TASKS)
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("invoke=="))
    last = next(number for number in range(first + 1, len(lines)) if not lines[number].startswith("    --hash"))
    (folder / "requirements.lock").write_text("\n".join(lines[first:last]) + "\n")
    return folder


def launch(checkout: Path, task: str = "hello", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `./inv hello`, or another task, with this interpreter's parent."""
    python = f"{sys.base_prefix}/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    return subprocess.run(
        [python, str(checkout / "inv"), task],
        cwd=checkout.parent,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_first_run_makes_the_environment_and_the_second_uses_it(checkout: Path) -> None:
    """Results on stdout alone, from any folder, also where the path has a space."""
    first = launch(checkout)
    assert (first.returncode, first.stdout) == (0, "hello\n"), first.stderr
    assert "making .venv" in first.stderr
    second = launch(checkout, PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert (second.returncode, second.stdout, second.stderr) == (0, "hello\n", "")
    ascii_only = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    third = launch(checkout, "encoding", **ascii_only)  # names of files must not depend on who builds
    assert third.stdout == "utf-8\nutf-8\n", third.stderr


def test_changed_lock_makes_it_anew(checkout: Path) -> None:
    """An environment is never older than its lock; one half made is none."""
    launch(checkout)
    with (checkout / "requirements.lock").open("a") as lock:
        lock.write("# changed\n")
    assert "making .venv" in launch(checkout).stderr
    (checkout / ".venv/.complete").unlink()
    assert "making .venv" in launch(checkout).stderr


def test_other_bytes_are_refused(checkout: Path) -> None:
    """A package with another hash is not installed, and no environment stays."""
    lock = checkout / "requirements.lock"
    words = [
        word if not word.startswith("--hash=") else "--hash=sha256:" + "0" * 64 for word in lock.read_text().split(" ")
    ]
    lock.write_text(" ".join(words) + "\n")
    refused = launch(checkout)
    assert refused.returncode == 14
    assert "pip could not install" in refused.stderr
    assert not (checkout / ".venv").exists()


def test_python_without_venv_and_no_apt_says_what_to_run(checkout: Path, tmp_path: Path) -> None:
    """Debian ships python3 without ensurepip."""
    (tmp_path / "sitecustomize.py").write_text(STRIPPED)
    refused = launch(checkout, PYTHONPATH=str(tmp_path), PATH="/nowhere")
    assert refused.returncode == 14
    assert "apt-get install python3." in refused.stderr
