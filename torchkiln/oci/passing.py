"""Blobs that pass from one registry to another, hashed on the way: who serves other bytes is named."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchkiln.errors import HashMismatchError, TorchkilnError
from torchkiln.oci import digest as digests
from torchkiln.oci.session import HaltedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchkiln.oci.digest import Tally
    from torchkiln.oci.image import Descriptor
    from torchkiln.oci.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """A blob of a registry, read in parts as `oci.upload.Read`."""

    source: Registry
    blob: Descriptor
    tally: Tally = field(default_factory=digests.Tally)
    """Of what has passed, from the first byte on without a gap."""

    def __call__(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from one offset to another; HashMismatchError before the last of them if it is another blob."""
        for piece in self.source.pieces(self.blob, start, stop):
            known = self.tally.size - start
            if 0 <= known < len(piece):  # what is read again was hashed before; after a gap nothing can be
                self.tally.write(piece[known:])
                if self.tally.size == self.blob.size:
                    self.source.same(self.tally.digest, self.blob.digest)
            start += len(piece)
            yield piece

    def doubted(self) -> HashMismatchError | None:
        """What is wrong with the source's copy, when somebody has got other bytes: read anew if not all was seen."""
        whole = self.tally.size == self.blob.size
        try:
            self.source.same(self.tally.digest if whole else self.source.reckon(self.blob), self.blob.digest)
        except HashMismatchError as error:
            return error
        except (TorchkilnError, HaltedError):  # it can't be asked any more
            return None
        return None
