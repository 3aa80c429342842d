"""Debian and Ubuntu: which suites are whose, where each one's mirror and keys are found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.errors import HostError
from torchkiln.matrix import facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchkiln.matrix.target import Base

SUITES = Path("/usr/share/distro-info")
"""Where mmdebstrap learns of suites that are younger than itself (package distro-info-data)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """What mmdebstrap has to be told about one."""

    name: str
    mirror: str
    """Environment variable: a mirror near this machine, used for bases whose row states none; never in the layer."""
    pockets: tuple[str, ...] = ("",)
    """Suites that a mirror serves together, by what is added to the suite's name."""
    keyring: str = ""
    """Its keys on the building machine; empty: mmdebstrap knows where."""
    package: str = ""
    """What brings them."""


DEBIAN = Distribution(name="debian", mirror="TORCHKILN_DEBIAN_MIRROR", package="debian-archive-keyring")
UBUNTU = Distribution(
    name="ubuntu",
    mirror="TORCHKILN_UBUNTU_MIRROR",
    pockets=("", "-updates", "-security"),
    keyring="/usr/share/keyrings/ubuntu-archive-keyring.gpg",
    package="ubuntu-archive-keyring",
)
KNOWN = {one.name: one for one in (DEBIAN, UBUNTU)}


def of(base: Base) -> Distribution:
    """The distribution that a base's suite belongs to, by the facts; one that nobody knows is taken for Debian's."""
    found = facts.suite(facts.read(), base.suite)
    return KNOWN[found.distribution] if found else DEBIAN


def sources(base: Base, distribution: Distribution, environment: Mapping[str, str]) -> str:
    """Lines for sources.list where a mirror is stated, in the row or, less binding, in the environment; else empty.

    One mirror a line: an address, or a whole `deb …` line.
    """
    stated = base.mirror or environment.get(distribution.mirror, "")
    components = " ".join(base.components)
    lines = []
    for line in filter(None, map(str.strip, stated.splitlines())):
        whole = line.startswith("deb ")
        suites = [f"{base.suite}{pocket}" for pocket in distribution.pockets]
        lines += [line] if whole else [f"deb {line} {suite} {components}" for suite in suites]
    return "\n".join(lines)


def keyring(base: Base, distribution: Distribution) -> str:
    """The file with the archive's keys, if it has to be named; HostError if it is not here."""
    path = base.keyring or distribution.keyring
    if path and not Path(path).is_file():
        remedy = f"apt-get install {distribution.package}" if path == distribution.keyring else "correct its `keyring`"
        raise HostError(f"the keys of the {base.suite} archive are not here: {path}", where=_where(base), remedy=remedy)
    return path


def check_known(base: Base, distribution: Distribution, suites: Path = SUITES) -> None:
    """HostError where mmdebstrap would take the suite for Debian's, and write Debian's addresses into the image."""
    if distribution.name == DEBIAN.name:
        return
    try:
        rows = [row.split(",") for row in (suites / f"{distribution.name}.csv").read_text().splitlines()]
    except OSError:
        rows = []
    if not any(base.suite in row for row in rows):
        what = f"mmdebstrap does not know that {base.suite} is a suite of {distribution.name.capitalize()}"
        raise HostError(what, where=_where(base), remedy="apt-get install distro-info-data")


def _where(base: Base) -> str:
    return f"base {base.name}"
