"""Where each file of a wheel goes, and what it holds there: the wheel specification, as a pure mapping.

Nothing is unpacked. What a wheel says about its files (RECORD) is taken over as the claim that copying them will
check; only scripts and metadata are read here. The environment is /opt/venv with one real site-packages for every
Python minor, so that a `py3-none` wheel has the same files under 3.10 and 3.14.
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import re
from dataclasses import dataclass, replace
from email.parser import Parser
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torchkiln.layers.members import Member, Zip

PREFIX = "opt/venv"
SITE = f"{PREFIX}/lib/python/site-packages"
BIN = f"{PREFIX}/bin"
SHEBANG = f"#!/{BIN}/python\n".encode()
SCHEMES = {"purelib": SITE, "platlib": SITE, "scripts": BIN, "data": PREFIX, "headers": f"{PREFIX}/include/site/python"}
ALGORITHMS = ("sha256", "sha384", "sha512")
"""Binary distribution format, RECORD: "sha256 or better"."""
_RESERVED = re.compile(
    rf"{BIN}|{BIN}/(pythonw?|pypy)[\d.]*t?|{BIN}/activate.*|{SITE}/torchkiln_startup\.(py|pth)"
    rf"|{PREFIX}/(pyvenv\.cfg|pip\.conf|constraints\.txt|lib64(/.*)?|lib/python\d[^/]*(/.*)?)"
)
"""The interpreter, what makes the environment, and its symlinks: no wheel may write these, or through them.

The environment's layer lies above the wheels': what both wrote would be its own, and the wheel's RECORD untrue.
"""
_GROUPS = ("console_scripts", "gui_scripts")
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_REFERENCE = re.compile(r"([\w.]+)\s*:\s*([\w.]+)\s*(\[[^\]]*\])?")
_SCRIPT = """\
import sys

from {module} import {name}

if __name__ == "__main__":
    sys.exit({attribute}())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file as it will stand in the image."""

    path: str
    mode: int
    size: int
    hash: str
    """As in RECORD: `sha256=` and base64 (urlsafe, unpadded). Of a member it is a claim, checked when copied."""
    content: Member | bytes


_BYTECODE = re.compile(r"/__pycache__/[^/]+\.pyc\Z")
"""Left out: the bytecode layer writes these, held against the layers' own time (numpy 2.2.6 ships one by accident)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A wheel as it will be installed."""

    name: str
    """Normalised."""
    version: str
    files: tuple[File, ...]
    """Sorted by path."""


def digest(data: bytes) -> str:
    """RECORD's form of a sha256."""
    return encode("sha256", hashlib.sha256(data).digest())


def encode(algorithm: str, value: bytes) -> str:
    """RECORD's form of any hash."""
    return f"{algorithm}={base64.urlsafe_b64encode(value).rstrip(b'=').decode()}"


def install(wheel: Zip) -> Distribution:
    """What installing this wheel writes; WheelError if it breaks the format or asks for something unsafe."""
    info = _dist_info(wheel)
    name, _, version = info.removesuffix(".dist-info").partition("-")
    _check_format(wheel, info)
    claims = _claims(wheel, info)
    entry_points = _entry_points(wheel, info)
    files = [_script(f"{BIN}/{command}", _wrapper(wheel, command, target)) for command, target in entry_points.items()]
    generated = {f"{info}/RECORD", f"{info}/INSTALLER"}
    for member in wheel.members.values():
        path = _destination(wheel, member.name, name)
        if (
            member.name in generated
            or _BYTECODE.search(path)
            or (path.startswith(f"{BIN}/") and _wraps(path, entry_points))
        ):
            continue
        claimed = claims.get(member.name) or digest(wheel.read(member.name))  # a signature has no claim
        files.append(_file(wheel, member, path, claimed))
    files.append(_plain(f"{SITE}/{info}/INSTALLER", b"torchkiln\n"))
    files.append(_plain(f"{SITE}/{info}/RECORD", _record(files, f"{SITE}/{info}/RECORD")))
    _check_paths(wheel, files)
    ordered = tuple(sorted(files, key=lambda file: file.path))
    return Distribution(name=canonicalize_name(name), version=version, files=ordered)


def _dist_info(wheel: Zip) -> str:
    """The one metadata folder, whose name must fit the wheel's own."""
    tops = {name.partition("/")[0] for name in wheel.members if "/" in name}
    found = sorted(top for top in tops if top.endswith(".dist-info"))
    if len(found) != 1:
        raise wheel.refuse(f"needs one .dist-info folder, has {found or 'none'}")
    for needed in ("WHEEL", "METADATA", "RECORD"):
        if f"{found[0]}/{needed}" not in wheel.members:
            raise wheel.refuse(f"{found[0]}/{needed} is missing")
    stated, named = found[0].partition("-")[0], wheel.path.name.partition("-")[0]
    if canonicalize_name(stated) != canonicalize_name(named):
        raise wheel.refuse(f"the file is called {named} but holds {found[0]}")
    return found[0]


def _check_format(wheel: Zip, info: str) -> None:
    """Major version 1 alone is understood (Binary distribution format, "Installing a wheel distribution")."""
    stated = Parser().parsestr(_text(wheel, f"{info}/WHEEL"))
    version = str(stated.get("Wheel-Version", "")).strip()
    if not re.fullmatch(r"1\.\d+", version):
        raise wheel.refuse(f"Wheel-Version is {version!r}; 1.x is understood")
    if str(stated.get("Root-Is-Purelib", "")).strip().lower() not in ("true", "false"):
        raise wheel.refuse("WHEEL does not say whether Root-Is-Purelib")


def requirements(wheel: Zip) -> tuple[str, ...]:
    """What a wheel asks for (core metadata, "Requires-Dist"), in its own words."""
    stated = Parser().parsestr(_text(wheel, f"{_dist_info(wheel)}/METADATA"), headersonly=True)
    return tuple(" ".join(str(text).split()) for text in stated.get_all("Requires-Dist", []))


def _text(wheel: Zip, name: str) -> str:
    try:
        return wheel.read(name).decode()
    except UnicodeDecodeError as error:
        raise wheel.refuse(f"{name} is not UTF-8") from error


def _claims(wheel: Zip, info: str) -> dict[str, str]:
    """Hash of every member by RECORD, which must list each member once and nothing else."""
    claims: dict[str, str] = {}
    wrong: list[str] = []
    try:
        rows = list(csv.reader(io.StringIO(_text(wheel, f"{info}/RECORD")), strict=True))
    except csv.Error as error:
        raise wheel.refuse(f"RECORD is not CSV: {error}") from error
    for row in filter(None, rows):
        name, claimed, size = (*row, "", "")[:3]
        member = wheel.members.get(name)
        exempt = name == f"{info}/RECORD" or name in {f"{info}/{signature}" for signature in _SIGNATURES}
        if name in claims:
            wrong.append(f"{name} is listed twice")
        elif member is None:
            wrong.append(f"{name} is listed, but not in the wheel")
        elif not exempt and claimed.partition("=")[0] not in ALGORITHMS:
            wrong.append(f"{name} is listed without a sha256 or better")
        elif size and size != str(member.size):
            wrong.append(f"{name}: expected {size} bytes, the wheel holds {member.size}")
        claims[name] = "" if exempt else claimed
    unlisted = wheel.members.keys() - claims.keys() - {f"{info}/{signature}" for signature in _SIGNATURES}
    wrong += [f"{name} is not listed" for name in sorted(unlisted)]
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""  # noqa: PLR2004  readable
        raise wheel.refuse(f"RECORD and content disagree: {'; '.join(wrong[:5])}{more}")
    return claims


def _entry_points(wheel: Zip, info: str) -> Mapping[str, str]:
    """Commands by name, console and GUI alike: both are plain scripts here."""
    if f"{info}/entry_points.txt" not in wheel.members:
        return {}
    parser = configparser.RawConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    try:
        parser.read_string(_text(wheel, f"{info}/entry_points.txt"))
    except configparser.Error as error:
        raise wheel.refuse(f"entry_points.txt cannot be read: {error.message}") from error
    console, gui = (dict(parser[group]) if parser.has_section(group) else {} for group in _GROUPS)
    if twice := sorted(name for name in console.keys() & gui.keys() if console[name] != gui[name]):
        raise wheel.refuse(f"two entry points are called {', '.join(twice)}")
    return console | gui


def _wrapper(wheel: Zip, command: str, target: str) -> bytes:
    """The script of an entry point; extras select dependencies and are long installed, so they play no part."""
    found = _REFERENCE.fullmatch(target.strip())
    parts = [*found[1].split("."), *found[2].split(".")] if found else [""]
    if not found or not all(part.isidentifier() for part in parts) or not re.fullmatch(r"[\w.@+-]+", command):
        raise wheel.refuse(f"entry point {command!r} = {target!r} names no callable")
    if command.startswith("."):
        raise wheel.refuse(f"entry point {command!r} is no name for a command")
    text = _SCRIPT.format(module=found[1], name=found[2].partition(".")[0], attribute=found[2])
    return SHEBANG + text.encode()


def _wraps(path: str, entry_points: Mapping[str, str]) -> bool:
    """Whether a shipped script only wraps an entry point, as old wheels do: the generated one replaces it."""
    command = path.removeprefix(f"{BIN}/")
    return command in entry_points or command.removesuffix("-script.py") in entry_points


def _destination(wheel: Zip, name: str, distribution: str) -> str:
    """Path in the image; `.data` folders are spread by their schemes."""
    top, _, rest = name.partition("/")
    if not top.endswith(".data") or not rest:
        return f"{SITE}/{name}"
    scheme, _, below = rest.partition("/")
    if scheme not in SCHEMES or not below:
        raise wheel.refuse(f"{name}: unknown scheme {scheme!r}; known are {', '.join(SCHEMES)}")
    return f"{SCHEMES[scheme]}/{distribution}/{below}" if scheme == "headers" else f"{SCHEMES[scheme]}/{below}"


def _file(wheel: Zip, member: Member, path: str, claimed: str) -> File:
    if not path.startswith(f"{BIN}/"):
        mode = 0o775 if member.executable else 0o664
        return File(path=path, mode=mode, size=member.size, hash=claimed, content=member)
    file = File(path=path, mode=0o775, size=member.size, hash=claimed, content=member)
    return _with_interpreter(wheel, member, file) if member.size < 1 << 20 else file


def _with_interpreter(wheel: Zip, member: Member, file: File) -> File:
    """Point a first line that starts with exactly `#!python` to the interpreter (Binary distribution format)."""
    data = wheel.read(member.name)
    if not data.startswith(b"#!python"):
        return file
    algorithm = file.hash.partition("=")[0]
    if encode(algorithm, hashlib.new(algorithm, data).digest()) != file.hash:
        raise wheel.refuse(f"{member.name}: expected {file.hash} by RECORD, found {digest(data)}")
    return replace(_script(file.path, SHEBANG + data.partition(b"\n")[2]), mode=file.mode)


def _plain(path: str, data: bytes) -> File:
    return File(path=path, mode=0o664, size=len(data), hash=digest(data), content=data)


def _script(path: str, data: bytes) -> File:
    return replace(_plain(path, data), mode=0o775)


def _record(files: Iterable[File], own: str) -> bytes:
    """RECORD of what is really there, itself without hash; paths are relative to site-packages."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = sorted((_relative(file.path), file.hash, str(file.size)) for file in files)
    writer.writerows([*rows, (_relative(own), "", "")])
    return text.getvalue().encode()


def _relative(path: str) -> str:
    """From site-packages, which lies three folders below the prefix."""
    inside = path.removeprefix(f"{SITE}/")
    return inside if inside != path else f"../../../{path.removeprefix(f'{PREFIX}/')}"


def _check_paths(wheel: Zip, files: Iterable[File]) -> None:
    """Refuse two files on one path, a file that is also a folder, and what the environment keeps for itself."""
    paths = [file.path for file in files]
    folders = {folder for path in paths for folder in parents(path)}
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise wheel.refuse(f"writes /{path} twice")
        if path in folders:
            raise wheel.refuse(f"/{path} is a file and a folder")
        if _RESERVED.fullmatch(path):
            raise wheel.refuse(f"writes /{path}, which belongs to the environment")
        seen.add(path)


def parents(path: str) -> Iterator[str]:
    """Every folder above a path, innermost first."""
    while path := path.rpartition("/")[0]:
        yield path
