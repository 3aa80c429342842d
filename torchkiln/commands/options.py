"""Options that several commands have, and what --help says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

TARGET = {"target": "id or glob of ./inv matrix; may be repeated"}
JSON = {"json": "one JSON document on stdout"}
PLAIN = {"plain_http": "host that may speak plain HTTP, as this machine's registries do anyway; may be repeated"}
WHOLE = {"verify": "read every byte back from the registry and hash it; else it is asked for the blobs' sizes"}
ENGINE = {"engine": "auto, docker or sandbox"}
MADE_FOR = {
    "for_": "a publish target of matrix.yaml: its compression, and its limits of layers",
    "compression": "gzip, zstd or zstd:LEVEL, instead of the row's or the publish target's",
}
EXTRA = {"extra_requirements": "file of requirements that are added to the rows, one a line"}


def hold_apart(*kinds: Mapping[str, bool]) -> None:
    """UsageError for options of two kinds, of which only one can be meant."""
    given = [names for kind in kinds if (names := [name for name, wanted in kind.items() if wanted])]
    if len(given) > 1:
        words = " and ".join(names[0] for names in given)
        raise UsageError(f"{words} contradict each other", remedy=f"{given[0][0]} alone, or without it")
