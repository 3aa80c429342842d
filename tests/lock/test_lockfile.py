from __future__ import annotations

import hashlib
import os
import sys
from typing import TYPE_CHECKING

import pytest
import uv
from hypothesis import given
from hypothesis import strategies as st

from tests import loopback
from torchkiln import process
from torchkiln.errors import LockError
from torchkiln.lock import lockfile
from torchkiln.lock.lockfile import Inputs, Pin

if TYPE_CHECKING:
    from pathlib import Path

names = st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,8}){0,2}", fullmatch=True)
versions = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){1,3}(\+[a-z0-9.]{0,6}[a-z0-9])?", fullmatch=True)
words = st.from_regex(r"[a-z0-9<>=.,+-]{1,20}", fullmatch=True)
pins = st.builds(
    Pin,
    name=names,
    version=versions,
    sha256=st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    filename=st.from_regex(r"[A-Za-z0-9._+-]{1,30}\.whl", fullmatch=True),
    size=st.none() | st.integers(min_value=0, max_value=10**12),
)
inputs = st.builds(
    Inputs, requirements=st.lists(words, max_size=5).map(tuple), python=words, platform=words, index=words
)
NUMPY = Pin(
    name="numpy",
    version="2.2.6",
    sha256="ab" * 32,
    filename="numpy-2.2.6-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    size=16821570,
)


@given(inputs, st.lists(pins, max_size=8, unique_by=lambda pin: pin.name), words)
def test_a_lock_survives_its_text_form(asked: Inputs, chosen: list[Pin], resolver: str) -> None:
    """parse(render(lock)) is the lock, checksums included."""
    lock = lockfile.make(asked, chosen, resolver)
    assert lockfile.parse(lockfile.render(lock)) == lock
    assert lock.inputs == lock.asked.checksum


def test_the_text_is_what_pip_reads() -> None:
    """A pin is one requirements line with its only hash, and the file name as a comment."""
    text = lockfile.render(lockfile.make(Inputs(), [NUMPY], "uv 1"))
    assert text.splitlines()[-1] == (f"numpy==2.2.6 --hash=sha256:{'ab' * 32} # {NUMPY.filename}, 16821570 bytes")


@pytest.mark.parametrize(
    "line",
    [
        "numpy>=2 --hash=sha256:" + "0" * 64 + " # numpy-2-py3-none-any.whl, 1 bytes",
        "numpy==2 # numpy-2-py3-none-any.whl, 1 bytes",
        "numpy==2 --hash=sha256:" + "0" * 64,
        "numpy==2 --hash=sha256:" + "0" * 64 + " # ../numpy-2.whl, 1 bytes",
        "numpy==2 --hash=sha256:" + "0" * 64 + " # numpy-2.tar.gz, 1 bytes",
        "--extra-index-url somewhere",
        "numpy @ somewhere",
    ],
)
def test_anything_but_a_full_pin_is_refused(line: str) -> None:
    """A range, a missing hash, a path, an sdist, an index or an address never slips into a build."""
    with pytest.raises(LockError, match="line 2 is not a pin"):
        lockfile.parse(f"# inputs: sha256:{'0' * 64}\n{line}\n")


def test_all_problems_are_told_at_once() -> None:
    """Every bad line, a name pinned twice and a missing checksum come in one error."""
    pin = lockfile.render(lockfile.make(Inputs(), [NUMPY], "")).splitlines()[-1]
    with pytest.raises(LockError) as raised:
        lockfile.parse(f"{pin}\n{pin}\nrubbish\n", where="x.txt")
    assert "line 3" in str(raised.value)
    assert "numpy is pinned twice" in str(raised.value)
    assert "# inputs:" in str(raised.value)
    assert raised.value.where == "x.txt"


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_pip_and_uv_install_from_a_lock(tool: str, tmp_path: Path) -> None:
    """A lock is a requirements file: hashes are required and met, and another file under the name is refused."""
    content = loopback.wheel("toy", "1.0+cpu")
    sha256 = hashlib.sha256(content).hexdigest()
    pin = Pin(name="toy", version="1.0+cpu", sha256=sha256, filename="toy-1.0+cpu-py3-none-any.whl", size=len(content))
    lock = tmp_path / "lock.txt"
    lock.write_text(lockfile.render(lockfile.make(Inputs(requirements=("toy",), python="3.11"), [pin], "uv 1")))
    program = {"pip": [sys.executable, "-m", "pip"], "uv": [uv.find_uv_bin(), "pip"]}[tool]
    options = ["--no-deps", "--no-index", "--require-hashes", "--find-links", str(tmp_path)]
    for body, good in ((content, True), (loopback.wheel("toy", "1.0+cpu", body=b"other"), False)):
        (tmp_path / pin.filename).write_bytes(body)
        settings = {"UV_NO_CACHE": "1", "PIP_NO_CACHE_DIR": "1", "UV_PYTHON": sys.executable}
        target = str(tmp_path / f"site-{good}")
        done = process.run(
            [*program, "install", *options, "--target", target, "-r", str(lock)], env={**os.environ, **settings}
        )
        said = (done.stdout + done.stderr).decode()
        assert (done.returncode == 0) is good, said
        assert good or "hash" in said.lower()


def test_a_lock_that_cannot_be_read_has_a_remedy(tmp_path: Path) -> None:
    """Bytes that are no text, and a folder, say what to do."""
    binary, folder = tmp_path / "binary.txt", tmp_path / "folder.txt"
    binary.write_bytes(b"\xff\xfe")
    folder.mkdir()
    for path in (binary, folder):
        with pytest.raises(LockError) as raised:
            lockfile.text_of(path, remedy="./inv lock --target x")
        assert "./inv lock --target x" in raised.value.remedy
        assert raised.value.where == str(path)
