"""Every file in checks/ is a check; one that cannot be imported is a check that fails, never one less."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from validate.model import Check, Loaded

CHECKS = Path(__file__).with_name("checks")


def identifiers(folder: Path = CHECKS) -> tuple[str, ...]:
    """The ids, from file names alone: `compile_random_uid.py` is compile.random_uid."""
    names = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    return tuple(name.replace("_", ".", 1) for name in names)


def named(glob: str) -> bool:
    """Whether a glob covers any check."""
    return any(fnmatchcase(identifier, glob) for identifier in identifiers())


def nearest(word: str) -> str:
    """The id that looks most like a word."""
    return get_close_matches(word, identifiers(), n=1, cutoff=0)[0]


def load(identifier: str) -> Loaded:
    """Import one check."""
    try:
        module = importlib.import_module("validate.checks." + identifier.replace(".", "_", 1))
        return Loaded(identifier, module.CHECK, getattr(module, "applies", _always), module.run)
    except Exception:  # noqa: BLE001  whatever a broken file raises is its answer
        error = traceback.format_exc(limit=-1).strip().splitlines()[-1]
        broken = Check(title=identifier, explanation="The suite itself is damaged: restore validate/checks.")
        return Loaded(identifier, broken, _always, None, error)


def discover() -> tuple[Loaded, ...]:
    """All checks, each after those it needs."""
    return ordered(load(identifier) for identifier in identifiers())


def ordered(checks: Iterable[Loaded]) -> tuple[Loaded, ...]:
    """Sorted by id, but needs come first; a need that does not exist, or a circle, is left to the runner to name."""
    by_id = {loaded.id: loaded for loaded in sorted(checks, key=lambda loaded: loaded.id)}
    placed: dict[str, Loaded] = {}

    def place(loaded: Loaded, above: tuple[str, ...]) -> None:
        for need in loaded.check.needs:
            if need in by_id and need not in above:
                place(by_id[need], (*above, loaded.id))
        placed.setdefault(loaded.id, loaded)

    for loaded in by_id.values():
        place(loaded, (loaded.id,))
    return tuple(placed.values())


def _always(_expect: Any) -> bool:
    return True
