"""Any layers, hostile ones above all, against a model in memory of what layer.md says; and against GNU tar."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests import rawlayers
from tests.rawlayers import MOMENT, Member, file, folder, hard_link, layer, symlink
from torchkiln import home as homes
from torchkiln import process, rootfs
from torchkiln.errors import ImageError
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OPAQUE = ".wh..wh..opq"
ROOT = os.geteuid() == 0
HOSTILE = [
    "a",
    "b",
    "c",
    "a",
    "b",
    "c",
    ".",
    "..",
    "",
    ".wh.a",
    ".wh.b",
    ".wh.",
    ".wh..",
    ".wh...",
    OPAQUE,
    ".wh..wh.x",
]
MODES = st.sampled_from([0o755, 0o711, 0o4755, 0o1777, 0o600, 0 if ROOT else 0o400])
"""Such as this user may read."""


class RefusedError(Exception):
    """The model takes no such layer."""


@dataclass(slots=True)
class Node:
    """Something in the model's tree."""

    kind: str
    said: Member | None = None
    number: int = 0
    """The same for names of one file."""
    kids: dict[str, Node] = field(default_factory=dict)


@dataclass(slots=True)
class Model:
    """A layer in memory."""

    root: Node = field(default_factory=lambda: Node("folder"))
    removed: list[list[str]] = field(default_factory=list)
    opaque: list[list[str]] = field(default_factory=list)


def parts(name: str) -> list[str]:
    """Components below the root."""
    found = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in found:
        raise RefusedError
    return found


def inside(root: Node, path: Sequence[str], *, make: bool = False) -> Node:
    """The folder there, links not followed."""
    here = root
    for part in path:
        if make and part not in here.kids:
            here.kids[part] = Node("folder")
        if part not in here.kids or here.kids[part].kind != "folder":
            raise RefusedError
        here = here.kids[part]
    return here


def modelled(members: Sequence[Member]) -> Model:
    """What unpacking these makes."""
    model = Model()
    for number, member in enumerate(members):
        path = parts(member.name)
        if not path:
            if member.kind != tarfile.DIRTYPE:
                raise RefusedError
            model.root.said = member
        elif any(part.startswith(".wh.") for part in path):
            whiteout(model, path)
        else:
            parent = inside(model.root, path[:-1], make=True)
            put(model, parent, path, member, number)
    return model


def whiteout(model: Model, path: list[str]) -> None:
    """Remember what lower layers lose."""
    *parents, name = path
    if any(part.startswith(".wh..wh.") for part in path) and name != OPAQUE:
        return
    hidden = name[4:]
    if any(part.startswith(".wh.") for part in parents) or not name.startswith(".wh.") or hidden in ("", ".", ".."):
        raise RefusedError
    inside(model.root, parents, make=True)
    if name == OPAQUE:
        model.opaque.append(parents)
    else:
        model.removed.append([*parents, hidden])


def put(model: Model, parent: Node, path: list[str], member: Member, number: int) -> None:
    """Make an entry; the last one of a name stands."""
    name = path[-1]
    if member.kind == tarfile.DIRTYPE:
        old = parent.kids.get(name)
        parent.kids[name] = replace(old, said=member) if old and old.kind == "folder" else Node("folder", member)
        return
    old = parent.kids.pop(name, None)
    if member.kind == tarfile.LNKTYPE:
        *above, target = parts(member.target) or [""]
        found = inside(model.root, above).kids.get(target)
        if found is None or found.kind == "folder":
            raise RefusedError
        parent.kids[name] = found
    elif member.kind == tarfile.CHRTYPE:
        model.removed.append(path)
    elif member.kind == tarfile.SYMTYPE and not member.target:
        raise RefusedError
    else:
        parent.kids[name] = Node("other", member, number + 1)


def merged(layers: Sequence[Model]) -> Node:
    """What a container of these layers sees."""
    root = Node("folder")
    for place, model in enumerate(layers):
        for path in model.opaque:
            for found in known(root, path):
                found.kids.clear()
        for path in model.removed:
            for found in known(root, path[:-1]):
                found.kids.pop(path[-1], None)
        overlay(root, model.root, 1000 * place)
    return root


def known(root: Node, path: Sequence[str]) -> Iterator[Node]:
    """The folder there, or nothing."""
    try:
        yield inside(root, path)
    except RefusedError:
        return


def overlay(lower: Node, upper: Node, offset: int) -> None:
    """Lay a layer's folder over the one below."""
    lower.said = upper.said or lower.said
    for name, kid in upper.kids.items():
        if kid.kind != "folder":
            lower.kids[name] = replace(kid, number=kid.number + offset)
            continue
        if name not in lower.kids or lower.kids[name].kind != "folder":
            lower.kids[name] = Node("folder")
        overlay(lower.kids[name], kid, offset)


def expected(root: Node) -> dict[str, tuple[object, ...]]:
    """The model's tree as `described` describes one on disk."""
    numbers: dict[int, int] = {}
    found: dict[str, tuple[object, ...]] = {}

    def add(node: Node, path: str) -> None:
        said = node.said or Member(name="", kind=tarfile.DIRTYPE, mode=0o755)
        mode = said.mode if ROOT or node.kind != "folder" else said.mode | 0o700
        owner = (said.uid, said.gid) if ROOT and node.said else (os.geteuid(), os.getegid())
        holds: object = said.content if said.kind == tarfile.REGTYPE else said.target
        kind = {tarfile.REGTYPE: 0o100000, tarfile.SYMTYPE: 0o120000, tarfile.FIFOTYPE: 0o010000}.get(
            said.kind, 0o040000
        )
        mode = 0o777 if kind == 0o120000 else mode
        number = 0 if node.kind == "folder" else numbers.setdefault(node.number, len(numbers))
        found[path or "."] = (kind | mode, *owner, MOMENT * 10**9, holds, number)
        for name in sorted(node.kids, key=lambda name: os.fsencode(f"{path}/{name}")):
            add(node.kids[name], f"{path}/{name}" if path else name)

    add(root, "")
    ordered = sorted(found.items(), key=lambda item: os.fsencode(item[0]))
    return renumbered(dict(ordered))


def renumbered(found: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    """Numbers of files in the order of their first names."""
    seen: dict[object, int] = {}
    return {
        name: (*about[:-1], 0 if about[0] & 0o170000 == 0o040000 else seen.setdefault(about[-1], len(seen)))  # type: ignore[operator]
        for name, about in found.items()
    }


PATHS = st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=4).map("/".join)
SANE = st.sampled_from(["a", "b", "c", "d/a", "d/b", "d/c", "d/d/a", "d/d/b", "d", "d/d"])
HIDING = st.sampled_from([".wh.a", ".wh.d", OPAQUE, "d/.wh.a", "d/.wh.d", f"d/{OPAQUE}", "a/.wh.a", f"d/d/{OPAQUE}"])
TARGETS = st.sampled_from(["a", "b/c", "..", "../..", "/OUTSIDE", "../../../../OUTSIDE", ".", "d"])


def members(names: st.SearchStrategy[str], targets: st.SearchStrategy[str]) -> st.SearchStrategy[Member]:
    """Entries of every kind."""
    regular = st.builds(file, names, st.binary(max_size=8), mode=MODES, uid=st.integers(0, 9))
    others = st.sampled_from([tarfile.FIFOTYPE, tarfile.CHRTYPE])
    return st.one_of(
        *[regular] * 3,
        *[st.builds(folder, names, mode=MODES, gid=st.integers(0, 9))] * 3,
        *[st.builds(file, HIDING)] * 2,
        st.builds(symlink, names, TARGETS),
        st.builds(hard_link, names, targets),
        st.builds(Member, name=names, kind=others, mode=MODES),
    )


MILD = st.lists(members(SANE, SANE), max_size=6)
WILD = st.lists(members(st.one_of(SANE, PATHS), PATHS), max_size=6)
LAYERS = st.one_of(
    *[st.lists(MILD, min_size=1, max_size=3)] * 2, st.lists(st.one_of(MILD, WILD), min_size=1, max_size=3)
)


@settings(max_examples=150)
@given(layers=LAYERS)
@example(
    layers=[[file("a/b"), symlink("c", "/OUTSIDE")], [file("c/.wh.secret"), file("c/.wh..wh..opq"), file(".wh.a")]]
)
@example(layers=[[file("a/.wh...")], []])
@example(layers=[[folder("a", mode=0), file("a/b"), hard_link("c", "a/b"), file("a")]])
def test_any_layers(layers: list[list[Member]]) -> None:
    """They make exactly the model's tree, or are refused as the model refuses them; nothing outside is changed."""
    with tempfile.TemporaryDirectory() as top:
        outside = Path(top) / "outside"
        outside.mkdir()
        (outside / "secret").write_bytes(b"s")
        before = rawlayers.snapshot(outside)
        home = homes.prepare(homes.Home(Path(top) / "home"))
        store = Store(home.store)
        placed = [
            [replace(member, target=member.target.replace("/OUTSIDE", str(outside))) for member in members]
            for members in layers
        ]
        stack = [layer(store, *members) for members in placed]
        try:
            wanted = expected(merged([modelled(members) for members in placed]))
        except RefusedError:
            with pytest.raises(ImageError):
                rootfs.merge(home, store, stack)
        else:
            assert renumbered(rawlayers.snapshot(rootfs.merge(home, store, stack))) == wanted
        assert rawlayers.snapshot(outside) == before
        assert list(home.temporary.iterdir()) == []
        assert {path.name for path in Path(top).iterdir()} == {"outside", "home"}


@st.composite
def harmless(draw: st.DrawFn) -> list[Member]:
    """Entries that every tool unpacks to the same: each path once, every folder before what is in it."""
    folders, paths, files = [""], set[str](), ["first"]
    members = [folder(".", mode=0o755), file("first", b"1")]
    name = st.text(
        st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=("Cs", "Cc")), min_size=1, max_size=70
    )
    for _ in range(draw(st.integers(0, 8))):
        path = draw(st.sampled_from(folders)) + draw(name.filter(lambda name: not name.startswith((".wh.", "first"))))
        if path.rsplit("/", 1)[-1] in (".", "..") or path in paths:
            continue
        paths.add(path)
        what = draw(st.sampled_from(["file", "folder", "symlink", "hard_link"]))
        if what == "folder":
            folders.append(f"{path}/")
            members.append(folder(path, mode=draw(st.sampled_from([0o755, 0o700, 0o1777]))))
        elif what == "file":
            files.append(path)
            headers = {"mtime": draw(st.sampled_from(["315619200", "1.25", "1700000000.123456789"]))}
            members.append(file(path, draw(st.binary(max_size=2000)), mode=draw(MODES), headers=headers))
        else:
            target = draw(st.sampled_from(files))
            members.append(symlink(path, target) if what == "symlink" else hard_link(path, target))
    return members


@given(members=harmless())
def test_what_gnu_tar_makes_of_it(members: list[Member]) -> None:
    """Harmless layers unpack to the same files, links, modes and times, to the nanosecond."""
    with tempfile.TemporaryDirectory() as top:
        home = homes.prepare(homes.Home(Path(top) / "home"))
        store = Store(home.store)
        target = Path(top) / "gnu"
        target.mkdir()
        command = ["tar", "--extract", "--preserve-permissions", "--delay-directory-restore", "--file", "-"]
        done = process.run([*command, "--directory", str(target)], stdin=rawlayers.tar(members))
        assert (done.returncode, done.stderr) == (0, b"")
        assert rawlayers.snapshot(rootfs.unpack(home, store, layer(store, *members))) == rawlayers.snapshot(target)
        shutil.rmtree(target)
