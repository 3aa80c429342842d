"""A user's addition from an index that asks for a password, from requirements file to image."""

from __future__ import annotations

import base64
import gzip
import json
import mmap
from typing import TYPE_CHECKING

import pytest

from tests import loopback, toys
from tests.kiln import ROW

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kiln import Kiln, Row
    from tests.loopback import Index

pytestmark = [pytest.mark.network, pytest.mark.sandbox]

SECRET = "hunter2-of-the-private-index"  # noqa: S105  of a server that lives for one test
TOLD = (SECRET.encode(), base64.b64encode(f"user:{SECRET}".encode()))
"""As it is, and as a header has it."""


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Index]:
    """It has one wheel, which asks for the torch of the row."""
    with loopback.serve() as index:
        index.password, index.relative = SECRET, True
        index.put(toys.make_wheel(tmp_path, "ours", "1.0", requires=["torch>=2"]))
        yield index


def holds(path: Path) -> bool:
    """Whether a file has the password in it."""
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(secret) >= 0 for secret in TOLD)


def test_the_password_of_an_index_is_nowhere_after_a_build(
    built: Row, warm: Kiln, private: Index, tmp_path: Path
) -> None:
    """Not in what was said, the lock, the image or the whole cache; uv's own cache lies elsewhere and is the user's."""
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login user password {SECRET}\n")
    (tmp_path / "netrc").chmod(0o600)
    settings = {"NETRC": str(tmp_path / "netrc"), "UV_INDEX": f"{private.url}/simple", "NO_PROXY": "127.0.0.1"}
    wishes = tmp_path / "wishes.txt"
    wishes.write_text("ours\n")
    row = ("--target", ROW, "--extra-requirements", str(wishes))
    with warm.start("build", *row, "--no-validate", "--json", env=settings) as process:
        out, err = process.communicate(timeout=1500)
    assert process.returncode == 0, err.decode()[-4000:]
    (entry,) = json.loads(out)
    (lock,) = tmp_path.glob(f"wishes.{ROW}-*.txt")
    assert "ours==1.0" in lock.read_text()
    assert not [secret for secret in TOLD if secret in out + err + lock.read_bytes()]
    assert [path for path in warm.home.rglob("*") if path.is_file() and holds(path)] == []
    added = [layer["digest"] for layer in entry["layers"] if layer not in built.entry["layers"]]
    blobs = [warm.home / "store/blobs/sha256" / digest.removeprefix("sha256:") for digest in added]
    tars = [gzip.decompress(blob.read_bytes()) for blob in blobs]
    assert any(b"answer = 42" in tar for tar in tars)
    assert not [secret for secret in TOLD if any(secret in tar for tar in tars)]
