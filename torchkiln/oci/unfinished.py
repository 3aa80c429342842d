"""Notes on uploads that broke off, so that another run goes on with them: a small file for each, held while in use.

A registry may let whoever knows an upload's address go on with it, so the files are their owner's alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from torchkiln.oci.document import MALFORMED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Note:
    """On the upload of one blob to one repository; without a file it keeps nothing."""

    file: FileIO | None = None

    def read(self) -> tuple[str, int]:
        """Where the upload goes on, and the least that a chunk must have; an empty place if none can be read."""
        try:
            found = json.loads(self.file.read()) if self.file else {}
            location, least = str(found["location"]), int(found["least"])
            httpx.URL(location)  # whoever asks there must get that far
        except (OSError, httpx.InvalidURL, *MALFORMED):
            return "", 0
        return location, least

    def write(self, location: str, least: int) -> None:
        """Instead of what it said; that it can't be kept is no reason to end an upload."""
        with suppress(OSError):
            self._replace(json.dumps({"location": location, "least": least}))

    def clear(self) -> None:
        """There is nothing to go on with."""
        with suppress(OSError):
            self._replace("")

    def _replace(self, text: str) -> None:
        if self.file:
            self.file.seek(0)
            self.file.truncate()
            self.file.write(text.encode())


@contextmanager
def held(folder: Path | None, subject: str) -> Iterator[Note]:
    """The note on a subject, for one process at a time: another one gets one that keeps nothing."""
    path = folder / hashlib.sha256(subject.encode()).hexdigest() if folder else None
    try:
        file = _opened(path) if path else None
    except OSError:  # held by another, or no place for it
        file = None
    if path is None or file is None:
        yield Note()
        return
    with file:
        try:
            yield Note(file)
        finally:
            if not os.fstat(file.fileno()).st_size:
                path.unlink(missing_ok=True)


def _opened(path: Path) -> FileIO:
    """Not buffered: what a full disk did not take would be written again, and refused again, when it is closed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    file.seek(0)
    return file
