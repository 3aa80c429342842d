"""A user's requirements file → what is added to a row."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torchkiln.errors import MatrixError
from torchkiln.matrix import target
from torchkiln.matrix.target import TRIO, Extra

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torchkiln.matrix.target import Target


def read(path: Path) -> Extra:
    """Requirements, one a line as in pip's format, comments allowed; MatrixError lists every line that is none.

    Options such as `--index-url` are refused: where packages come from is the configuration of uv, and may hold a
    password. A line that names one of the trio is refused too, since the row says which torch it has.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise MatrixError(f"the requirements cannot be read: {reason}", where=str(path)) from error
    name = _name(path)
    stated = [(number, re.sub(r"(^|\s)#.*", "", line).strip()) for number, line in enumerate(lines, 1)]
    problems = [f"line {number}: {problem}" for number, text in stated if text and (problem := _wrong(text))]
    if not any(text for _, text in stated):
        problems.append("it asks for nothing")
    if problems:
        remedy = "one requirement such as transformers>=4.50 a line; indexes are set for uv: UV_INDEX, uv.toml, netrc"
        raise MatrixError(f"this is no list of additions: {'; '.join(problems)}", where=str(path), remedy=remedy)
    return Extra(id=name, requirements=tuple(text for _, text in stated if text), file=path.absolute())


def _name(path: Path) -> str:
    """What ids call the additions: the stem, which loses nothing but its case, so that two files are two names."""
    if re.fullmatch(r"[a-z0-9]+", path.stem.lower()):
        return path.stem.lower()
    plain = re.sub(r"[^a-z0-9]", "", path.stem.lower()) or "additions"
    what = f"{path.name} makes no name: ids take it from the file's, which is letters a to z and digits"
    raise MatrixError(what, where=str(path), remedy=f"rename the file, for example to {plain}{path.suffix or '.txt'}")


def select(targets: Sequence[Target], patterns: Sequence[str], extra: Extra) -> tuple[Target, ...]:
    """Rows that an id or glob names, with additions on top instead of those that the matrix may give them.

    An id may be that of the row below or of the row with the additions.
    """
    plain = {row.id: row for row in (replace(one, extra=None) for one in targets)}
    below = [pattern.removesuffix(f"-with-{extra.id}") for pattern in patterns]
    return tuple(replace(row, extra=extra) for row in target.select(tuple(plain.values()), below))


def _wrong(text: str) -> str:
    if text.startswith("-"):
        return f"an option ({text.split(maxsplit=1)[0].partition('=')[0]}), and only requirements belong here"
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return f"{text!r} is not a requirement"
    name = canonicalize_name(requirement.name)
    if requirement.url:
        return f"an address for {name}, and only an index says where wheels are"
    return f"{text!r} names {name}, and the row says which one it has" if name in TRIO else ""
