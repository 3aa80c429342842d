"""What an image that others made holds of what ours need, read from its layers without running anything."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.errors import ImageError
from torchkiln.inspect import facts, listing
from torchkiln.inspect.listing import Entry
from torchkiln.layers.base import userland
from torchkiln.oci import content

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchkiln.home import Home
    from torchkiln.matrix.target import Base
    from torchkiln.oci import tar
    from torchkiln.oci.image import Layer
    from torchkiln.oci.store import Store

LINKS = 40
"""Followed at most on the way to a file, as the kernel does (path_resolution(7))."""
LARGEST = 16 << 20
"""Bytes of a file that is read here; a C library has two. A larger one counts as not there."""
MOST_LIBRARIES = 8
"""C libraries that are looked at; no image has as many."""
MOST_FOLDERS = 1 << 20
"""That layers may imply."""
PASSWD, SHADOW, STATUS = "etc/passwd", "etc/shadow", "var/lib/dpkg/status"
TOOLS = {"gcc": ("gcc", "cc"), "g++": ("g++", "c++")}
"""What is needed, and the names under which it counts."""
FOLDERS = ("usr/local/bin", "usr/bin", "bin")
"""Of PATH, in its order (plan.environment)."""
CERTIFICATES = ("etc/ssl/certs/ca-certificates.crt", "etc/pki/tls/certs/ca-bundle.crt", "etc/ssl/cert.pem")
TINI, SHELL, CACHE = "usr/bin/tini", "bin/bash", "etc/ld.so.cache"
OURS = ("opt/venv", "opt/torchkiln", "opt/cuda")
"""Folders that our own layers fill."""
CROSSED = ("opt", "etc", "etc/profile.d", "etc/uv", "home", "home/torch", "workspace", "tmp", "usr", "usr/lib")
"""Folders that our own layers write into, or name as parents."""
_GLIBC = re.compile(rb"GNU C Library [^\n]{0,99}? release version (\d{1,4}\.\d{1,4})")
_VERSION = re.compile(rb'^#define[ \t]+PY_VERSION[ \t]+"(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?\+?)"', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A small file of the image."""

    data: bytes
    mode: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The file system that the layers make together, and the few files that are read."""

    tree: Mapping[str, Entry]
    files: Mapping[str, File]

    def real(self, path: str) -> str:
        """Where a path leads in the image, links followed; empty if nowhere."""
        return real(self.tree, path)

    def text(self, path: str) -> bytes:
        """What is in a file, links followed; nothing if it is not there or was not read."""
        found = self.files.get(self.real(path))
        return found.data if found else b""


def prefix(base: Base) -> str:
    """Where the interpreter is installed: `usr`, `usr/local`."""
    return posixpath.dirname(posixpath.dirname(base.interpreter)).strip("/")


def headers(base: Base) -> str:
    """The folder with Python.h."""
    return f"{prefix(base)}/include/python{base.python}"


def take(home: Home, store: Store, layers: Sequence[Layer], base: Base) -> Survey:
    """Read the layers; ImageError if one is no tar."""
    tree = _complete(listing.merge(facts.contents(store, home, layers)))
    wanted = [PASSWD, SHADOW, STATUS, f"{headers(base)}/patchlevel.h", *_libraries(tree)]
    return Survey(tree=tree, files=_read(store, layers, {found for path in wanted if (found := real(tree, path))}))


def _complete(tree: dict[str, Entry]) -> dict[str, Entry]:
    """The tree with the folders that no entry describes, which layers may leave out."""
    parents: set[str] = set()
    for path in tree:
        steps = content.parts(path)
        parents |= {"/".join(steps[:count]) for count in range(1, len(steps))}
        if len(parents) > MOST_FOLDERS:
            raise ImageError("the layers have more folders than any image")
    return {parent: Entry(parent, "folder", 0o755, 0) for parent in parents} | tree


def _libraries(tree: Mapping[str, Entry]) -> list[str]:
    """Where the C library may be; several on some distributions."""
    found = (path for path in tree if re.fullmatch(r"(usr/)?lib(64)?/([^/]+-linux-gnu/)?libc\.so\.6", path))
    return sorted(found)[:MOST_LIBRARIES]


def _read(store: Store, layers: Sequence[Layer], wanted: set[str]) -> dict[str, File]:
    """Files by path, each from the highest layer that has it, and the last of its name there, as engines do.

    One that is a second name of another there (a hard link), or too large, is left out.
    """
    found: dict[str, File] = {}
    left = set(wanted)
    for layer in reversed(layers):
        if not left:
            break
        own: dict[str, File | None] = {}
        with content.tar_of(store, layer.descriptor.digest, limit=layer.unpacked_size) as stream:
            for member, data in stream.members():
                path = "/".join(content.parts(member.name))
                if path in left:
                    own[path] = _file(member, data.read()) if data and member.size <= LARGEST else None
        found |= {path: file for path, file in own.items() if file}
        left -= own.keys()
    return found


def _file(member: tar.Entry, data: bytes) -> File:
    return File(data=data, mode=member.mode, uid=member.uid, gid=member.gid)


def real(tree: Mapping[str, Entry], path: str) -> str:
    """Where a path leads, links in any of its parts followed inside the tree; empty if nowhere, or in a circle."""
    done: list[str] = []
    left = [part for part in path.split("/") if part]
    links = 0
    while left:
        part = left.pop(0)
        if part in {".", ".."}:
            done = done[:-1] if part == ".." else done
            continue
        entry = tree.get("/".join([*done, part]))
        if entry is None:
            return ""
        if entry.kind != "symlink":
            done.append(part)
            continue
        links += 1
        if links > LINKS or len(entry.link) > content.LONGEST_PATH:
            return ""
        done = [] if entry.link.startswith("/") else done
        left = [*(step for step in entry.link.split("/") if step), *left]
    return "/".join(done)


def python(survey: Survey, base: Base) -> str:
    """The version that the headers state; empty if there are none."""
    found = _VERSION.search(survey.text(f"{headers(base)}/patchlevel.h"))
    return found[1].decode(errors="replace").rstrip("+") if found else ""


def lacks(survey: Survey, base: Base, machine: str) -> tuple[str, ...]:
    """Everything that our images need and this one has not, in words; what we can add is not among it."""
    return (
        *_interpreter(survey, base, machine),
        *_toolchain(survey),
        *_packages(survey, base),
        *_files(survey, machine),
        *_library(survey, base),
        *_user(survey),
        *_ways(survey.tree),
    )


def _interpreter(survey: Survey, base: Base, machine: str) -> Iterable[str]:
    name = f"python{base.python}"
    found, exact = survey.real(base.interpreter), survey.real(f"{posixpath.dirname(base.interpreter)}/{name}")
    if not found:
        yield f"there is no {base.interpreter}"
    elif not exact or found != exact:
        yield f"{base.interpreter} is {found.rpartition('/')[2]}, the row says {base.python}"
    elif survey.tree[found].elf != machine:
        yield f"/{found} is for {survey.tree[found].elf or 'no machine'}, not {machine}"
    version = python(survey, base)
    if not survey.real(f"{headers(base)}/Python.h") or not version:
        yield f"there are no headers in /{headers(base)} (Python.h): install python{base.python}-dev"
    elif not version.startswith(f"{base.python}."):
        yield f"the headers in /{headers(base)} are of Python {version}"


def _toolchain(survey: Survey) -> Iterable[str]:
    for tool, names in TOOLS.items():
        if not any(survey.real(f"{folder}/{name}") for folder in FOLDERS for name in names):
            yield f"there is no {tool}"


def _packages(survey: Survey, base: Base) -> Iterable[str]:
    """What a flavour adds to bases that we assemble must be there already, as a package or as a program."""
    there = {name for name, _ in userland.installed(survey.text(STATUS).decode(errors="replace"))}
    for name in base.packages:
        if name not in there and not any(survey.real(f"{folder}/{name}") for folder in FOLDERS):
            yield f"there is no {name}, which flavour {base.flavour} needs"


def _files(survey: Survey, machine: str) -> Iterable[str]:
    tini = survey.real(TINI)
    if not tini:
        yield f"there is no /{TINI}"
    elif survey.tree[tini].elf != machine:
        yield f"/{TINI} is for {survey.tree[tini].elf or 'no machine'}, not {machine}"
    if not survey.real(SHELL):
        yield f"there is no /{SHELL}"
    if not survey.real(CACHE):
        yield f"there is no /{CACHE}: run ldconfig where the image is made"
    if not any(survey.real(path) for path in CERTIFICATES):
        yield "there are no certificates: install ca-certificates"


def _library(survey: Survey, base: Base) -> Iterable[str]:
    found = {match[1].decode() for path in _libraries(survey.tree) if (match := _GLIBC.search(survey.text(path)))}
    if not found:
        yield "there is no GNU C library"
    elif found != {base.glibc}:
        yield f"the C library is glibc {' and '.join(sorted(found))}, the row says {base.glibc}"


def _user(survey: Survey) -> Iterable[str]:
    lines = survey.text(PASSWD).decode(errors="replace").splitlines()
    rows = [[name, *values, "none", "none", "none"] for name, *values in (line.split(":") for line in lines)]
    if not rows:
        yield f"there is no /{PASSWD}"
    yield from (
        f"user torch has uid {row[2]} and gid {row[3]}, not 1000 and 0"
        for row in rows
        if row[0] == "torch" and row[2:4] != ["1000", "0"]
    )


def _ways(tree: Mapping[str, Entry]) -> Iterable[str]:
    """No layer of ours may go through a link, or into a folder that has content of somebody else."""
    yield from (f"/{path} is there already: it is for our own layers" for path in OURS if path in tree)
    for path in CROSSED:
        entry = tree.get(path)
        if entry is not None and entry.kind != "folder":
            yield f"/{path} is a {entry.kind}, not a folder"
