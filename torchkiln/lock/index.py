"""What an index offers for a platform, asked through uv.

uv's own configuration and defaults say where its index is. Addresses live in memory only, for the length of one
question. An index that fails is an error, never a reason to ask another one.
"""

from __future__ import annotations

import json
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
from torchkiln.errors import HostError, LockError
from torchkiln.matrix.target import TRIO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchkiln.lock.lockfile import Inputs

PYTORCH_INDEX = "https://download.pytorch.org/whl"
"""TORCHKILN_PYTORCH_INDEX names a mirror of it instead."""
NEWEST_MINOR = 40
"""Of glibc 2, the newest that uv has a platform for."""
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
    dependencies: bool = True,
) -> tuple[Offer, ...]:
    """What uv chooses for requirements on a platform; LockError in its own words if it can't.

    `asked` says the Python, the platform and where the trio comes from. `links` are wheels at hand, preferred to the
    PyTorch index. Without `dependencies` only the requirements themselves are looked up.
    """
    arch, _, glibc = asked.platform.partition(" glibc ")
    with tempfile.TemporaryDirectory(prefix="torchkiln-lock-") as name:
        folder = Path(name)
        suffix_index = "" if asked.index == "default" or links else asked.index
        folder.joinpath("pyproject.toml").write_text(_project(requirements, asked.python, suffix_index, environment))
        for link in links:
            folder.joinpath(link.name).symlink_to(link.absolute())
        done = process.run(
            [
                *(uv.find_uv_bin(), "pip", "compile", "pyproject.toml", "--format", "pylock.toml", "--no-header"),
                *("--python", sys.executable, "--python-version", asked.python, "--no-python-downloads"),
                *("--python-platform", _platform(arch, glibc), "--only-binary", ":all:"),
                *(("--find-links", name) if links else ()),
                *(() if dependencies else ("--no-deps",)),
            ],
            env=_environment(environment),
            cwd=folder,
        )
        messages = network.redact(done.stderr.decode(errors="replace")).strip()
        if "os error 28" in messages:  # ENOSPC, as Rust prints it
            raise HostError("the disk is full while uv asks the index", where=messages[-300:], remedy=ROOM)
        if done.returncode != 0:
            raise LockError(f"uv cannot resolve it:\n{messages}", remedy=_remedy(messages))
        for line in messages.splitlines():
            if line.startswith("warning:"):
                console.warn(line.removeprefix("warning: "))
        return _offers(done.stdout.decode())


def _platform(arch: str, glibc: str) -> str:
    """What uv calls it; a newer C library takes every wheel of an older one."""
    major, minor = (int(part) for part in glibc.split("."))
    return f"{arch}-manylinux_{major}_{min(minor, NEWEST_MINOR)}"


def root(environment: Mapping[str, str]) -> str:
    """Address of the PyTorch index, without a variant's folder."""
    return environment.get("TORCHKILN_PYTORCH_INDEX") or PYTORCH_INDEX


def _remedy(messages: str) -> str:
    if "Failed to fetch" in messages or "error sending request" in messages:
        return "check the network, UV_DEFAULT_INDEX, HTTPS_PROXY and SSL_CERT_FILE"
    return "change the versions in matrix.yaml"


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What uv sees: the caller's environment, with one CA setting for every fetcher."""
    bundle = network.certificates(environment)
    return {**environment, "NO_COLOR": "1"} | ({"SSL_CERT_FILE": bundle} if bundle else {})


def _project(requirements: Sequence[str], python: str, index: str, environment: Mapping[str, str]) -> str:
    """A project that asks for the requirements, the trio from the PyTorch index and nowhere else (uv: explicit)."""
    lines = [
        "[project]",
        'name = "row"',
        'version = "0"',
        f'requires-python = ">={python}"',
        f"dependencies = {json.dumps(list(requirements))}",
    ]
    if index:
        lines += ["[tool.uv.sources]", *(f'{name} = {{index = "pytorch"}}' for name in TRIO)]
        lines += [
            "[[tool.uv.index]]",
            'name = "pytorch"',
            f"url = {json.dumps(f'{root(environment)}/{index}')}",
            "explicit = true",
        ]
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
