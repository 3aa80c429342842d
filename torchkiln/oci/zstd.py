"""zstd (RFC 8878), as layers hold it: read in pieces with bounded memory, and written by one pinned encoder."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from io import BufferedReader

CompressionParameter = zstd.CompressionParameter
DecompressionParameter = zstd.DecompressionParameter
ZstdCompressor = zstd.ZstdCompressor
ZstdDecompressor = zstd.ZstdDecompressor
ZstdError = zstd.ZstdError
VERSION: str = zstd.zstd_version
"""Of libzstd: another one may write other bytes."""
FRAME = b"\x28\xb5\x2f\xfd"
LARGEST_WINDOW = 27
"""Log2 of the bytes that a frame may have a reader remember: libzstd's own limit, 128 MiB; ours ask for 8 MiB."""


def begins(start: bytes) -> bool:
    """Whether a file with these first four bytes is one: a frame, or one to skip as zstd:chunked and others have."""
    skipped = len(start) >= len(FRAME) and start[0] & 0xF0 == 0x50 and start[1:4] == b"\x2a\x4d\x18"  # noqa: PLR2004
    return skipped or start.startswith(FRAME)


def reading(blob: BufferedReader) -> zstd.ZstdFile:
    """What all frames of a file hold; reading raises ZstdError or EOFError for one that is damaged or cut off."""
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: LARGEST_WINDOW}
    return zstd.ZstdFile(blob, "rb", options=options)
