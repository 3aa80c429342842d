"""Read an image's tree as a process inside would: links resolved below its root, never on the host."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

LINKS = 40
"""As many links as Linux follows (path_resolution(7))."""
LONGEST = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Whom a command runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"


def resolve(tree: Path, path: str) -> str:
    """The absolute path inside that `path` leads to, links followed as if `tree` were `/`; it need not exist.

    Whoever mounts there on behalf of the image must use this: its own links could lead to the host.
    """
    waiting = [part for part in reversed(path.split("/")) if part not in {"", "."}]
    found: list[str] = []
    links = 0
    while waiting:
        part = waiting.pop()
        if part == "..":
            found = found[:-1]
            continue
        target = _link(tree.joinpath(*found, part))
        if target is None:
            found.append(part)
            continue
        links += 1
        if links > LINKS:
            raise EngineError(f"too many links on the way to {path}", where=str(tree))
        found = [] if target.startswith("/") else found
        waiting += [step for step in reversed(target.split("/")) if step not in {"", "."}]
    return "/" + "/".join(found)


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115  a string: Path would drop what `..` means
    except OSError:
        return None


def text(tree: Path, path: str) -> str:
    """A small regular file of the image; empty if there is none."""
    try:
        place = tree / resolve(tree, path).lstrip("/")
        if not stat.S_ISREG(place.lstat().st_mode):
            return ""
        with place.open("rb") as file:
            return file.read(LONGEST).decode("utf-8", "replace")
    except (OSError, EngineError):
        return ""


def account(tree: Path, user: str) -> Account:
    """`uid`, `uid:gid` or names, looked up in the image as Docker does (config.md, User); empty is root."""
    who, _, group = (user or "0").partition(":")
    rows = [row for row in _rows(tree, "/etc/passwd", 6) if who in (row[0], row[2])]
    if not rows and not who.isdigit():
        raise EngineError(f"the image has no user {who!r}", remedy="give a numeric uid:gid")
    uid = int(rows[0][2] if rows else who)
    home = rows[0][5] if rows else "/"
    if group:
        return Account(uid=uid, gid=_gid(tree, group), home=home)
    name = rows[0][0] if rows else ""
    member = tuple(int(row[2]) for row in _rows(tree, "/etc/group", 4) if name and name in row[3].split(","))
    return Account(uid=uid, gid=int(rows[0][3]) if rows else 0, groups=member, home=home)


def _gid(tree: Path, group: str) -> int:
    found = [row[2] for row in _rows(tree, "/etc/group", 3) if group in (row[0], row[2])]
    if not found and not group.isdigit():
        raise EngineError(f"the image has no group {group!r}", remedy="give a numeric uid:gid")
    return int(found[0] if found else group)


def _rows(tree: Path, path: str, width: int) -> list[list[str]]:
    """Rows of a colon-separated table with at least `width` fields and numbers where numbers belong."""
    rows = [line.split(":") for line in text(tree, path).splitlines()]
    return [row for row in rows if len(row) >= width and row[2].isdigit() and (width < 6 or row[3].isdigit())]  # noqa: PLR2004  passwd has a gid in its fourth field
