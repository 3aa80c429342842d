"""A layer in zstd, made from the gzip one: inflated and compressed in one pass, in pieces, on several cores.

The tar stays the same, and so do its diff_id, the image's config and what is unpacked. The bytes depend on the tar and
the level alone: libzstd is pinned, and its jobs are of one size however many threads do them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from torchkiln.errors import HostError, ImageError, UsageError
from torchkiln.oci import content, zstd
from torchkiln.oci.compression import GZIP, LEVELS
from torchkiln.oci.digest import CHUNK
from torchkiln.oci.image import ZSTD_TYPE

if TYPE_CHECKING:
    from threading import Event

    from torchkiln.oci.compression import Compression
    from torchkiln.oci.image import Layer
    from torchkiln.oci.store import Store

ENCODER = "1.5.7"
"""The libzstd that writes format 1: with another one the golden layer tells whether `Compression.FORMAT` goes up."""
WINDOW = 23
"""Log2 of how far back a match may lie: 8 MiB, for which every decoder should have room (RFC 8878, 3.1.1.1.2)."""
JOB = 8 << 20
"""Bytes that one thread compresses at a time."""
THREADS = 2
"""Of one layer: two compress as fast as one inflates and hashes; other cores have other layers (README.md)."""
MOST_AT_ONCE = 4
"""Layers: each needs about 80 MB at level 3, 100 at 9, and more above."""


def recompress(
    store: Store, layer: Layer, compression: Compression, *, threads: int = THREADS, stop: Event | None = None
) -> Layer:
    """The same tar in that compression; a layer is gzip as it is made.

    ImageError if the blob is damaged or its tar not the one that `diff_id` names: nothing is left then, as when `stop`
    is set meanwhile. HostError if the disk is full, or libzstd another one than the pinned.
    """
    if compression == GZIP:
        return layer
    digest, size = layer.descriptor.digest, layer.unpacked_size
    encoder = _encoder(compression.level, size, threads)
    with content.tar_of(store, digest, limit=size) as tar, store.writer() as blob:
        while piece := tar.read(CHUNK):
            blob.write(encoder.compress(piece))
            if stop is not None and stop.is_set():
                raise HostError("compressing was stopped", where=layer.title)
        if tar.finish() != layer.diff_id or tar.size != size:
            remedy = "./inv verify tells more; delete the blob and build again"
            raise ImageError(f"layer {digest} holds another tar than {layer.diff_id}", where=layer.title, remedy=remedy)
        blob.write(encoder.flush())
        return replace(layer, descriptor=blob.commit(ZSTD_TYPE))


def at_once() -> int:
    """How many layers to compress at a time, so that all cores work."""
    return min(max(2, len(os.sched_getaffinity(0)) // THREADS), MOST_AT_ONCE)


def _encoder(level: int, size: int, threads: int) -> zstd.ZstdCompressor:
    if level not in LEVELS:
        raise UsageError(f"zstd has no level {level}", remedy=f"{LEVELS.start} to {LEVELS[-1]}")
    if zstd.VERSION != ENCODER:
        remedy = "./inv with Python 3.11 to 3.13 uses the one in requirements.lock"
        raise HostError(f"libzstd {zstd.VERSION} would write other bytes than {ENCODER}", remedy=remedy)
    option = zstd.CompressionParameter
    options: dict[int, int] = {
        option.compression_level: level,
        option.window_log: WINDOW,
        option.enable_long_distance_matching: 1,  # GPU code repeats itself far apart, once for each architecture
        option.job_size: JOB,
        option.nb_workers: threads,  # never 0, which is another encoder with other bytes
        option.checksum_flag: 1,
    }
    encoder = zstd.ZstdCompressor(options=options)
    encoder.set_pledged_input_size(size)
    return encoder
