"""How the blobs of an image are compressed: a value, and how people write it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from torchkiln.errors import UsageError

LEVELS = range(1, 20)
"""Of zstd; what zstd(1) calls ultra asks readers for more than the 8 MiB that all should have (RFC 8878, 3.1.1.1.2)."""
LEVEL = 3
"""Of zstd where none is said: the least with which images are well below 0.8 of gzip's (layers/README.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """Of every layer of an image; its diff_ids, and so its config and its unpacked layers, don't depend on it."""

    FORMAT: ClassVar[int] = 1
    """Of the encoder of zstd: goes up when the same tar and level become other bytes."""
    kind: Literal["gzip", "zstd"] = "gzip"
    level: int = 0
    """Of zstd; gzip has none, since wheels' streams are copied as they are."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.level}" if self.level else self.kind


GZIP = Compression()
"""What every puller reads, and what layers are made as."""


def parse(text: str) -> Compression:
    """`gzip`, `zstd` or `zstd:LEVEL`; UsageError for anything else."""
    kind, colon, level = text.partition(":")
    remedy = f"gzip, zstd (level {LEVEL}) or zstd:{LEVELS.start} to zstd:{LEVELS[-1]}"
    if kind == "gzip" and colon:
        raise UsageError(f"{text!r}: gzip has no level, wheels' own streams are copied", remedy=remedy)
    if kind == "gzip":
        return GZIP
    if kind != "zstd" or (colon and not re.fullmatch(r"\d{1,2}", level, re.ASCII)):
        raise UsageError(f"{text!r} is no compression", remedy=remedy)
    if colon and int(level) not in LEVELS:
        raise UsageError(f"{text!r}: zstd has no such level", remedy=remedy)
    return Compression(kind="zstd", level=int(level) if colon else LEVEL)
