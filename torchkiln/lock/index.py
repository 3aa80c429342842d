"""What an index offers for a platform, asked through uv.

uv's own configuration and defaults say where its index is. Addresses live in memory only, for the length of one
question. An index that fails is an error, never a reason to ask another one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import uv
from packaging.utils import canonicalize_name

from torchkiln import console, network, process
from torchkiln.errors import HostError, LockError, redact
from torchkiln.matrix.target import TRIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from subprocess import CompletedProcess

    from torchkiln.lock.lockfile import Inputs

PYTORCH_INDEX = "https://download.pytorch.org/whl"
MIRROR = "TORCHKILN_PYTORCH_INDEX"
"""Names a mirror of it instead."""
NEWEST_MINOR = 40
"""Of glibc 2, the newest that uv has a platform for."""
BUILT = (*TRIO, "pytorch-triton-rocm", "triton-rocm")
"""What a row on the PyTorch index takes from there and nowhere else: it is built for the variant, and other indexes
have other wheels under these names. All the rest, NVIDIA's libraries too, comes from the default index, where what
is served can be checked."""
NAME = "torchkiln-variant"
"""What uv is to call that index: a user's own index of the same name would take its place."""
UNKNOWN = rf"\b({'|'.join(BUILT)}) was not found in the package registry"
LONGEST = 1800
"""Seconds: uv bounds how long an index is silent, not how slowly it speaks. No row takes nearly as long."""
ROOM = "make room in the temporary folder (TMPDIR) and in uv's cache (UV_CACHE_DIR)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A wheel that an index or a folder has."""

    name: str
    version: str
    filename: str
    url: str
    sha256: str
    """Empty if the index gives none."""
    size: int | None


def ask(
    asked: Inputs,
    requirements: Sequence[str],
    environment: Mapping[str, str],
    links: Sequence[Path],
    *,
    constraints: Sequence[str] = (),
    preferences: Mapping[str, str] | None = None,
    dependencies: bool = True,
) -> tuple[Offer, ...]:
    """What uv chooses for requirements on a platform; LockError in its own words if it can't.

    `asked` says the Python, the platform and where the trio comes from. `links` are wheels at hand, which stand in
    for the PyTorch index. `preferences` are versions by name, kept to where they still do. Without `dependencies`
    only the requirements themselves are looked up.
    """
    with tempfile.TemporaryDirectory(prefix="torchkiln-lock-") as name:
        folder = Path(name)
        _lay_out(folder, asked, requirements, links, environment)
        folder.joinpath("constraints.txt").write_text("".join(f"{text}\n" for text in constraints))
        if preferences:
            folder.joinpath("pylock.toml").write_text(_pylock(preferences))
        options = ["--constraints", "constraints.txt"] if constraints else []
        options += [] if dependencies else ["--no-deps"]
        done = _resolved([*_command(asked), *options], environment, folder)
        for warning in _warnings(done, asked, environment, constraints, fresh=dependencies):
            console.warn(warning)
        return _offers(done.stdout.decode())


def _resolved(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> CompletedProcess[bytes]:
    try:
        return process.run(command, env=_environment(environment), cwd=folder, timeout=LONGEST)
    except subprocess.TimeoutExpired as error:
        remedy = "see whether the indexes that are asked answer otherwise, and run it again"
        raise LockError(f"uv got no answer out of the indexes in {LONGEST} seconds", remedy=remedy) from error


def _lay_out(
    folder: Path, asked: Inputs, requirements: Sequence[str], links: Sequence[Path], environment: Mapping[str, str]
) -> None:
    """A project that asks for the requirements, and the wheels at hand beside it."""
    folder.joinpath("links").mkdir()
    for link in links:
        folder.joinpath("links", link.name).symlink_to(link.absolute())
    index = _index(folder / "links" if links else None, asked.index, environment)
    folder.joinpath("pyproject.toml").write_text(_project(requirements, asked.python, index))


def _command(asked: Inputs) -> list[str]:
    """Uv for a Python and a platform; nothing is built, and no interpreter fetched."""
    arch, _, glibc = asked.platform.partition(" glibc ")
    return [
        *(uv.find_uv_bin(), "pip", "compile", "pyproject.toml", "--output-file", "pylock.toml", "--no-header"),
        *("--python", sys.executable, "--python-version", asked.python, "--no-python-downloads"),
        *("--python-platform", _platform(arch, glibc), "--only-binary", ":all:"),
    ]


def _warnings(
    done: CompletedProcess[bytes],
    asked: Inputs,
    environment: Mapping[str, str],
    constraints: Sequence[str],
    *,
    fresh: bool,
) -> list[str]:
    """What uv warns of; HostError for a full disk, LockError where it fails or, of what is locked anew, for a yank."""
    messages = redact(done.stderr.decode(errors="replace")).strip()
    if "os error 28" in messages:  # ENOSPC, as Rust prints it
        raise HostError("the disk is full while uv asks the index", where=messages[-300:], remedy=ROOM)
    if done.returncode != 0:
        said = re.sub(r"^error: ", "", messages, flags=re.MULTILINE)
        raise LockError(f"uv cannot resolve it:\n{said}", remedy=_remedy(messages, asked.index, environment))
    warnings = [line.removeprefix("warning: ") for line in messages.splitlines() if line.startswith("warning:")]
    if fresh:
        pinned = tuple(f"`{text}`" for text in constraints)  # what a lock has already is used, with a warning
        _refuse_yanked(warning for warning in warnings if not any(text in warning for text in pinned))
    return warnings


def _platform(arch: str, glibc: str) -> str:
    """What uv calls it; a newer C library takes every wheel of an older one."""
    major, minor = (int(part) for part in glibc.split("."))
    return f"{arch}-manylinux_{major}_{min(minor, NEWEST_MINOR)}"


def root(environment: Mapping[str, str]) -> str:
    """Address of the PyTorch index, without a variant's folder."""
    return environment.get(MIRROR) or PYTORCH_INDEX


def page(folder: str, environment: Mapping[str, str]) -> str:
    """Address of one variant's index."""
    return f"{root(environment)}/{folder}"


def _remedy(messages: str, folder: str, environment: Mapping[str, str]) -> str:
    unreachable = "Failed to fetch" in messages or "error sending request" in messages
    mirror = urlsplit(root(environment))
    place = mirror.netloc.rpartition("@")[2] + mirror.path.rstrip("/")  # uv may write the address otherwise
    if folder != "default" and (not mirror.netloc or place in messages or re.search(UNKNOWN, messages)):
        asked = f"nothing else is asked for what is built for {folder}, unless facts.yaml has enough for --from-facts"
        return f"check the network and {MIRROR}; {asked}"
    if unreachable:
        return "check the network, UV_DEFAULT_INDEX, HTTPS_PROXY and SSL_CERT_FILE"
    return "change the versions in matrix.yaml"


def _refuse_yanked(warnings: Iterable[str]) -> None:
    """An exact version is given out though it was taken back (PEP 592); what is locked anew must not begin with one."""
    if yanked := [warning for warning in warnings if re.search(r"\bis yanked\b", warning)]:
        remedy = "choose other versions in matrix.yaml; the reason is that of those who took it back"
        raise LockError(f"a version was taken back by its makers: {'; '.join(yanked)}", remedy=remedy)


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What uv sees: the caller's environment, with one CA setting for every fetcher; nothing unbinds a name."""
    bundle = network.certificates(environment)
    kept = {name: value for name, value in environment.items() if not name.startswith("UV_NO_SOURCES")}
    return {**kept, "NO_COLOR": "1"} | ({"SSL_CERT_FILE": bundle} if bundle else {})


def _index(links: Path | None, folder: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where what is built for a variant comes from, as uv's settings; nothing for rows on the default index."""
    if folder == "default":
        return ()
    where = (f"url = {json.dumps(links.as_uri())}", 'format = "flat"') if links else ()
    return where or (f"url = {json.dumps(page(folder, environment))}",)


def _project(requirements: Sequence[str], python: str, index: Sequence[str]) -> str:
    """A project that asks for the requirements.

    A source binds a name to an index only where the project itself asks for it: neither a constraint nor a
    requirement behind a marker does. `explicit` keeps every other name off that index.
    """
    lines = [
        "[project]",
        'name = "row"',
        'version = "0"',
        f'requires-python = ">={python}"',
        f"dependencies = {json.dumps(list(requirements))}",
    ]
    if index:
        lines += ["[tool.uv.sources]", *(f'{name} = {{index = "{NAME}"}}' for name in BUILT)]
        lines += ["[[tool.uv.index]]", f'name = "{NAME}"', *index, "explicit = true"]
    return "\n".join(lines) + "\n"


def _pylock(preferences: Mapping[str, str]) -> str:
    """An earlier answer (PEP 751), to which uv keeps as far as it can."""
    lines = ['lock-version = "1.0"', 'created-by = "torchkiln"']
    for name, version in preferences.items():
        lines += ["[[packages]]", f"name = {json.dumps(name)}", f"version = {json.dumps(version)}"]
    return "\n".join(lines) + "\n"


def _offers(text: str) -> tuple[Offer, ...]:
    """The wheels of a pylock (PEP 751), leniently: an index may give no hash and no size."""
    nothing: dict[str, Any] = {}
    packages: list[dict[str, Any]] = tomllib.loads(text).get("packages", [])
    return tuple(_offer(package, wheel) for package in packages for wheel in package.get("wheels") or [nothing])


def _offer(package: dict[str, Any], wheel: dict[str, Any]) -> Offer:
    url = str(wheel.get("url", ""))
    return Offer(
        name=canonicalize_name(str(package["name"])),
        version=str(package.get("version", "")),
        filename=str(wheel.get("name") or unquote(urlsplit(url).path.rpartition("/")[2])),
        url=url,
        sha256=str(wheel.get("hashes", {}).get("sha256", "")),
        size=wheel["size"] if "size" in wheel else _local_size(url),
    )


def _local_size(url: str) -> int | None:
    """Of a file at hand; a page of links gives no sizes (PEP 503)."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)).stat().st_size if parts.scheme == "file" else None


def resolver() -> str:
    """Name and version of what chooses, for the heading of a lock."""
    found = process.run([uv.find_uv_bin(), "--version"])
    return " ".join(found.stdout.decode().split()[:2])
