"""Copies a wheel's members into a layer: all checked the first time, nothing twice, and what was found is kept.

A member is held against the zip's CRC-32 and size and against RECORD's hash, in pieces, while it is inflated. In a
layer that is known these are left out, since the digest of the blob covers them; where the boundary of a stream is
remembered, it isn't inflated either.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isal import isal_zlib

from torchkiln.layers import install, members
from torchkiln.layers.archive import Entry
from torchkiln.layers.inflate import BUFFER, Boundary, CorruptStreamError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchkiln.layers.archive import Archive
    from torchkiln.layers.install import File
    from torchkiln.layers.members import Member, Zip
    from torchkiln.layers.sums import Sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Copier:
    """A wheel whose members are copied."""

    wheel: Zip
    checked: bool
    """Whether its content is held against what it says; else the layer's digest has to be."""
    remembered: Mapping[int, Boundary]
    """Boundaries of streams, by the places of their headers in the zip; only used where nothing is checked."""
    found: dict[int, Boundary] = field(default_factory=dict)
    """Boundaries of the streams that were inflated."""

    def add(self, archive: Archive, file: File) -> None:
        """Add a file; WheelError if it is not what the wheel says."""
        archive.add(Entry(path=file.path, kind="file", mode=file.mode, size=file.size))
        if isinstance(file.content, bytes):
            archive.gzip.write(file.content)
            return
        member = file.content
        algorithm = file.hash.partition("=")[0]
        sums = (hashlib.new(algorithm),) if self.checked else ()
        try:
            crc = self._copy(archive, member, *sums)
        except CorruptStreamError as error:
            raise self.wheel.refuse(f"{member.name} {error}") from error
        if crc != member.crc:
            raise self.wheel.refuse(f"{member.name}: expected CRC-32 {member.crc:08x} by the zip, found {crc:08x}")
        for each in sums:
            if (actual := install.encode(algorithm, each.digest())) != file.hash:
                raise self.wheel.refuse(f"{member.name}: expected {file.hash} by RECORD, found {actual}")

    def _copy(self, archive: Archive, member: Member, *sums: Sum) -> int:
        """A member's CRC-32, as found or as remembered."""
        if member.method == members.STORED:
            return self._store(archive, member, *sums)
        source, boundary = self.wheel.source(member), self.remembered.get(member.offset)
        if boundary is not None and not self.checked:
            archive.gzip.replay(source, member.compressed, boundary, crc=member.crc, size=member.size)
            return member.crc
        crc, self.found[member.offset] = archive.gzip.copy(source, member.size, *sums, packed=member.compressed)
        return crc

    def _store(self, archive: Archive, member: Member, *sums: Sum) -> int:
        """A member that the zip did not compress is compressed now; its CRC-32."""
        if member.size != member.compressed:
            raise CorruptStreamError(f"is stored in {member.compressed} bytes, and said to hold {member.size}")
        source, buffer = self.wheel.source(member), memoryview(bytearray(BUFFER))
        crc = total = 0
        while count := source(buffer):
            archive.gzip.write(buffer[:count])
            for each in sums:
                each.update(buffer[:count])
            crc = isal_zlib.crc32(buffer[:count], crc)
            total += count
        if total < member.size:
            raise CorruptStreamError("is cut off")
        return crc
