"""images/locks/layers.lock ↔ the layer that each key becomes, one a line: every machine makes these bytes.

It holds layers that are made from locked things alone. Lines are sorted by key and stand each for itself: branches
that add rows merge without a conflict, and a key that two branches give different layers is an error.
"""

from __future__ import annotations

import re
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchkiln.errors import ROW, LayerMismatchError, LockError
from torchkiln.oci import digest as digests
from torchkiln.oci.image import Descriptor, Layer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

COMMAND = f"./inv lock --layers {ROW}"
"""What writes entries."""
REMEDY = (
    "git restore the line, if it was edited; with the versions it was locked with, the layer is the locked one again; "
    f"if it was changed on purpose, delete the line, and {COMMAND} locks this one instead"
)
"""What to do about a layer that is not the locked one."""
_HEADING = (
    "# One layer a line: key, form, digest, bytes, diff_id, bytes unpacked, what it holds; by ./inv lock --layers.\n"
)
_TYPES = "application/vnd.oci.image.layer.v1."
"""What media types of layers begin with (image-spec, layer.md)."""
_LINE = re.compile(
    r"(?P<key>[a-z]+-[0-9a-f]{64}(?:\.[a-z0-9-]+)?) (?P<form>tar(?:\+[a-z]+)?) (?P<digest>sha256:[0-9a-f]{64})"
    r" (?P<size>\d{1,15}) (?P<diff_id>sha256:[0-9a-f]{64}) (?P<unpacked>\d{1,15}) (?P<title>[^\n]*)"
)


def render(layers: Mapping[str, Layer]) -> str:
    """The file of these layers by key; `parse` gives them back."""
    return _HEADING + "".join(f"{_line(key, layer)}\n" for key, layer in sorted(layers.items()))


def _line(key: str, layer: Layer) -> str:
    blob = layer.descriptor
    form = blob.media_type.removeprefix(_TYPES)
    return f"{key} {form} {blob.digest} {blob.size} {layer.diff_id} {layer.unpacked_size} {layer.title}"


def parse(text: str, *, where: str = "layers.lock") -> dict[str, Layer]:
    """Layers by key; LockError lists every line that is none, and every key that has two layers."""
    found: defaultdict[str, list[Layer]] = defaultdict(list)
    problems = []
    for line in filter(None, text.splitlines()):
        if match := _LINE.fullmatch(line):
            found[match["key"]].append(_layer(match))
        elif not line.startswith("#"):
            problems.append(f"{line[:120]!r} is no layer")
    counts = {key: len({_identity(layer) for layer in layers}) for key, layers in found.items()}
    problems += [f"{found[key][0].title}: {count} layers for {key}" for key, count in counts.items() if count > 1]
    if problems:
        remedy = f"git restore the file, or delete those lines and run {COMMAND}"
        raise LockError("; ".join(problems[:5]), where=where, remedy=remedy)
    return {key: layers[0] for key, layers in found.items()}


def _layer(match: re.Match[str]) -> Layer:
    blob = Descriptor(media_type=_TYPES + match["form"], digest=digests.parse(match["digest"]), size=int(match["size"]))
    diff_id, unpacked = digests.parse(match["diff_id"]), int(match["unpacked"])
    return Layer(descriptor=blob, diff_id=diff_id, unpacked_size=unpacked, title=match["title"])


def read(path: Path) -> Mapping[str, Layer]:
    """The layers in a file, by key; none if there is no file, LockError if it cannot be read."""
    return parse(text(path), where=str(path))


def text(path: Path) -> str:
    """What a file says; nothing if there is none, LockError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        remedy = "git restore the file and make it readable"
        raise LockError(f"the lock cannot be read: {error}", where=str(path), remedy=remedy) from error


def hold(known: Mapping[str, Layer], key: str, made: Layer, *, versions: Callable[[], str]) -> None:
    """LayerMismatchError if a layer is not the one that is known by its key; its title is for people and plays no part.

    `versions` tells what made it, if that is needed: the layer format and the tools.
    """
    expected = known.get(key)
    if expected is None or same(expected, made):
        return
    wanted, found = _identity(expected), _identity(made)
    differing = [
        f"{what} {one} instead of {two}" for what, one, two in zip(_WORDS, found, wanted, strict=True) if one != two
    ]
    raise LayerMismatchError(
        f"{made.title or key} is not the layer that layers.lock knows: {', '.join(differing)}; made by {versions()}",
        where=key,
        remedy=REMEDY,
    )


@contextmanager
def located(path: Path, root: Path) -> Iterator[None]:
    """Let a LayerMismatchError, which names a key first, say in which line of the file at `path` it stands."""
    try:
        yield
    except LayerMismatchError as error:
        number = _line_of(path, error.where.partition(",")[0])
        place = f"{path.relative_to(root)}:{number}, " if number else ""
        raise LayerMismatchError(error.what, where=f"{place}{error.where}", remedy=error.remedy) from error


def _line_of(path: Path, key: str) -> int:
    """Counted from 1; 0 if there is none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((number for number, line in enumerate(lines, start=1) if line.partition(" ")[0] == key), 0)


def same(one: Layer, other: Layer) -> bool:
    """Whether they are the same bytes; what people call them plays no part."""
    return _identity(one) == _identity(other)


_WORDS = ("form", "digest", "size", "diff_id", "unpacked size")


def _identity(layer: Layer) -> tuple[str | int, ...]:
    blob = layer.descriptor
    return (blob.media_type.removeprefix(_TYPES), blob.digest, blob.size, layer.diff_id, layer.unpacked_size)
