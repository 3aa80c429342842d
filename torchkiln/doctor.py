"""What this machine has and lacks for building and proving images."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from torchkiln import network, process, room
from torchkiln.layers.base import bootstrap, privilege

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchkiln.engines import Engine
    from torchkiln.home import Home

ROOM_NEEDED = 25 * 10**9
"""Bytes for one CUDA row from nothing: wheels 3 GB, layers 3 GB, unpacked 6 GB, and the same in a Docker engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "missing", "note"]
    detail: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        """For `doctor --json`."""
        return {"name": self.name, "state": self.state, "detail": self.detail, "remedy": self.remedy}


def diagnose(home: Home, engines: Iterable[Engine], environment: Mapping[str, str]) -> tuple[Finding, ...]:
    """Everything worth knowing before a build, in the order a build needs it; nothing missing is an error here."""
    return (
        _python(),
        _mmdebstrap(),
        _disk(home),
        _memory(),
        *(_engine(engine) for engine in engines),
        _gpu(),
        *_network(environment),
    )


def able(findings: Iterable[Finding]) -> bool:
    """Whether an image can be built and run here."""
    states = {finding.name: finding.state for finding in findings}
    return "missing" not in (states["mmdebstrap"], states["disk"]) and "ok" in (states["docker"], states["sandbox"])


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Finding(name="python", state="ok", detail=f"{version} at {sys.base_prefix}")


def _mmdebstrap() -> Finding:
    if lack := privilege.lacks(bootstrap.PROGRAM):
        return Finding(
            name="mmdebstrap", state="missing", detail=f"{lack.what}; it makes base layers", remedy=lack.remedy
        )
    version = process.run([bootstrap.PROGRAM, "--version"]).stdout.decode().strip()
    how = "as root" if os.geteuid() == 0 else "in a user namespace, without root"
    return Finding(name="mmdebstrap", state="ok", detail=f"{version}, {how}")


def _disk(home: Home) -> Finding:
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    detail = f"{free / 1e9:.0f} GB free for {home.root}"
    if not os.access(folder, os.W_OK):
        return Finding(
            name="disk", state="missing", detail=f"{folder} cannot be written", remedy="set TORCHKILN_HOME elsewhere"
        )
    if free < ROOM_NEEDED:
        remedy = room.REMEDY
        return Finding(
            name="disk", state="note", detail=f"{detail}; a CUDA row from nothing takes about 25", remedy=remedy
        )
    return Finding(name="disk", state="ok", detail=detail)


def _memory() -> Finding:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Finding(name="machine", state="ok", detail=f"{os.cpu_count()} CPUs, {pages / 1e9:.0f} GB memory")


def _engine(engine: Engine) -> Finding:
    lacks = engine.lacks()
    if lacks:
        return Finding(
            name=engine.name, state="missing", detail=lacks, remedy="one engine is enough: docker or sandbox"
        )
    limits = engine.restrictions()
    return Finding(
        name=engine.name, state="ok", detail=f"works; cannot judge: {', '.join(limits)}" if limits else "works"
    )


def _gpu() -> Finding:
    nvidia = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    amd = ["/dev/kfd"] if Path("/dev/kfd").exists() else []
    if nvidia or amd:
        return Finding(name="gpu", state="ok", detail=", ".join(nvidia + amd))
    return Finding(name="gpu", state="note", detail="none: GPU checks answer not-run, GPU rows stay incomplete")


def _network(environment: Mapping[str, str]) -> Iterable[Finding]:
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        if environment.get(name):
            yield Finding(name="proxy", state="note", detail=f"{name} → {_without_secret(environment[name])}")
    for name in network.CERTIFICATES:
        if environment.get(name):
            exists = Path(environment[name]).is_file()
            remedy = "" if exists else f"unset {name} or point it to a file"
            yield Finding(
                name="ca", state="ok" if exists else "missing", detail=f"{name}={environment[name]}", remedy=remedy
            )


def _without_secret(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.hostname or ''}" + (f":{parts.port}" if parts.port else "")
