"""Which checks a caller asks for, by id or glob; a glob that names none is an error, not an empty run."""

from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from torchkiln.errors import MatrixError, UsageError
from torchkiln.inspect.checks import CHECKS
from torchkiln.validation.suite import SUITE_CHECK, identifiers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from torchkiln.matrix.target import Target


def matches(identifier: str, globs: Iterable[str]) -> bool:
    """Whether any of the globs covers a check id."""
    return any(fnmatchcase(identifier, glob) for glob in globs)


def select(globs: Sequence[str], suite: Path) -> tuple[str, ...]:
    """The globs, or one for everything if there are none; UsageError for one that covers no check."""
    known = _known(suite)
    for glob in globs:
        if not any(fnmatchcase(identifier, glob) for identifier in known):
            (nearest, *_) = get_close_matches(glob, known, n=1, cutoff=0)
            raise UsageError(f"no check is called {glob}", where="--checks", remedy=f"--checks {nearest}")
    return tuple(globs) or ("*",)


def check_required(targets: Sequence[Target], suite: Path) -> None:
    """MatrixError with every required glob that names no check, and the nearest id; `suite` is validate/."""
    known = _known(suite)
    globs = dict.fromkeys(glob for target in targets for glob in target.required)
    problems = [
        f"{glob!r}{_nearest(glob, known)}" for glob in globs if not any(fnmatchcase(one, glob) for one in known)
    ]
    if problems:
        raise MatrixError(
            f"no check is called {', nor '.join(problems)}",
            where="matrix.yaml, required",
            remedy="an id or glob of the checks that ./inv validate lists",
        )


def inside(globs: Sequence[str], suite: Path) -> tuple[str, ...]:
    """The globs that concern the suite in the container; all of it where its own completeness is asked for."""
    if matches(SUITE_CHECK, globs):
        return ("*",)
    return tuple(glob for glob in globs if any(fnmatchcase(identifier, glob) for identifier in identifiers(suite)))


def _known(suite: Path) -> tuple[str, ...]:
    return (SUITE_CHECK, *(check.id for check in CHECKS), *identifiers(suite))


def _nearest(glob: str, known: Sequence[str]) -> str:
    near = get_close_matches(glob, known, n=1, cutoff=0.4)
    return f" (nearest: {near[0]})" if near else ""
