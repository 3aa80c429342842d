"""Contents of an image's layers, read once per diff_id and remembered: layers are shared, and never change."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, cast

from torchkiln.errors import ImageError
from torchkiln.home import write_atomically
from torchkiln.inspect import listing
from torchkiln.inspect.listing import Contents
from torchkiln.oci import content
from torchkiln.oci import digest as digests

if TYPE_CHECKING:
    from collections.abc import Sequence
    from io import BufferedReader

    from torchkiln.home import Home
    from torchkiln.oci.image import Layer
    from torchkiln.oci.store import Store

_SOURCES = (Path(__file__).with_name(name).read_bytes() for name in ("listing.py", "secrets.py"))
READER = digests.encoded(digests.of_bytes(b"".join(_SOURCES)))[:16]
"""Names what is read and how; what another reader remembered is read again."""
READERS = 4
"""Inflating releases the interpreter lock; more readers than processors gain nothing."""


def contents(store: Store, home: Home, layers: Sequence[Layer]) -> tuple[Contents, ...]:
    """Each layer's contents, in order; ImageError if a blob is no tar, gzipped or plain (as `docker save` has it)."""
    with ThreadPoolExecutor(READERS) as pool:
        return tuple(pool.map(lambda layer: _contents(store, home, layer), layers))


def _contents(store: Store, home: Home, layer: Layer) -> Contents:
    path = home.facts / f"{READER}-{digests.encoded(layer.diff_id)}.json"
    remembered = _remembered(path)
    if remembered is not None:
        return remembered
    try:
        with store.open(layer.descriptor.digest) as blob, content.plain(cast("BufferedReader", blob)) as stream:
            found = listing.read(stream)
    except ImageError as error:
        raise ImageError(f"not a tar: {error.what}", where=f"layer {layer.descriptor.digest}") from error
    write_atomically(path, json.dumps(found.to_json(), separators=(",", ":")).encode())
    return found


def _remembered(path: Path) -> Contents | None:
    try:
        return Contents.from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing or damaged: read the layer again
