"""Which GPU architectures a library holds a kernel for, read from its fat binaries: what cuobjdump would list.

NVIDIA does not document the format. What is read here is what nvcc 13.0 and 13.2 write: containers of a header and
entries, each with its kind, sizes and architecture. Only code that nvcc did not compress (`--no-compress`) can be
searched for a kernel's name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAGIC = struct.pack("<I", 0xBA55ED50)
CONTAINER = struct.Struct("<IHHQ")
"""Magic, version, size of this header, size of all entries."""
ENTRY = struct.Struct("<HHIQIIII")
"""Kind, version, size of this header, size of the payload; three that do not matter here, and the architecture."""
KINDS = {1: "compute", 2: "sm"}
"""PTX and machine code."""


def architectures(data: bytes, kernel: str) -> tuple[str, ...]:
    """`sm_90` for machine code of the kernel and `compute_90` for its PTX, sorted; a letter suffix is not told."""
    name = kernel.encode()
    return tuple(sorted({arch for start in _containers(data) for arch, code in _entries(data, start) if name in code}))


def _containers(data: bytes) -> Iterator[int]:
    start = data.find(MAGIC)
    while start >= 0:
        yield start
        start = data.find(MAGIC, start + 1)


def _entries(data: bytes, start: int) -> Iterator[tuple[str, bytes]]:
    """Architecture and payload of each; what is cut off or no entry ends the container."""
    if start + CONTAINER.size > len(data):
        return
    _, _, header, size = CONTAINER.unpack_from(data, start)
    position, end = start + header, start + header + size
    while position + ENTRY.size <= min(end, len(data)):
        kind, _, header, size, _, _, _, arch = ENTRY.unpack_from(data, position)
        if header < ENTRY.size or position + header + size > len(data):
            return
        if kind in KINDS:
            yield f"{KINDS[kind]}_{arch}", data[position + header : position + header + size]
        position += header + size
