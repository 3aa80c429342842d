"""Remembers of each wheel where its deflate streams' last blocks begin and where they end, so as not to inflate again.

One file for each wheel, by its sha256: a heading, the wheel's sha256, 16 bytes for each stream in ascending order
(where its local header is in the zip; bit of the last block times 8, and unused bits), and the sha256 of all that.
A file that is damaged, or of another version or wheel, counts as none. One that only lies cannot harm: what is
written with it is held against the digest of a layer that is known.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchkiln.home import write_atomically
from torchkiln.layers.inflate import Boundary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

HEADING = b"torchkiln boundaries 1\n"
_ENTRY = struct.Struct("<QQ")
_HASH = 32


def read(folder: Path | None, sha256: str) -> dict[int, Boundary]:
    """What is remembered of a wheel, by the streams' places in it; nothing if there is no sound file."""
    try:
        data = (folder / sha256).read_bytes() if folder else b""
    except FileNotFoundError:
        return {}
    return _parse(data, sha256)


def write(folder: Path, sha256: str, found: Mapping[int, Boundary]) -> None:
    """Remember that too, as parts of a wheel do at once; a reader sees the old file or the new one."""
    with _alone(folder):
        known = read(folder, sha256)
        merged = known | dict(found)
        if merged != known:
            write_atomically(folder / sha256, _render(merged, sha256))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder itself, between processes and threads: so briefly that no wheel needs a lock of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def forget(folder: Path, sha256: str) -> None:
    """Forget a wheel."""
    (folder / sha256).unlink(missing_ok=True)


def _render(found: Mapping[int, Boundary], sha256: str) -> bytes:
    entries = (_ENTRY.pack(place, each.last << 3 | each.unused) for place, each in sorted(found.items()))
    data = HEADING + bytes.fromhex(sha256) + b"".join(entries)
    return data + hashlib.sha256(data).digest()


def _parse(data: bytes, sha256: str) -> dict[int, Boundary]:
    head = HEADING + bytes.fromhex(sha256)
    body, check = data[len(head) : -_HASH], data[-_HASH:]
    if data[: len(head)] != head or len(body) % _ENTRY.size or hashlib.sha256(data[:-_HASH]).digest() != check:
        return {}
    entries = list(_ENTRY.iter_unpack(body))
    places = [place for place, _ in entries]
    if places != sorted(set(places)):
        return {}
    return {place: Boundary(value >> 3, value & 7) for place, value in entries}
