"""Run mmdebstrap: a suite and a list of packages → a tar of the userland, unprivileged where the machine allows it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln import network, process, room
from torchkiln.console import note
from torchkiln.errors import BaseError, HostError
from torchkiln.layers.base import distribution as distributions
from torchkiln.layers.base import privilege
from torchkiln.matrix.target import ARCH
from torchkiln.oci.image import ARCHITECTURES
from torchkiln.specs import LAYER_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torchkiln.layers.base.distribution import Distribution
    from torchkiln.matrix.target import Base

PROGRAM = "mmdebstrap"
PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
MERGED = "usr-is-merged"
"""Asserts that /usr is merged, as setup.sh makes it; the package usrmerge would do it with much of Perl."""
_TAIL = 15
_APART = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Starts a program whose processes and mounts end with it, and it with us: a kill leaves no /proc in a lost folder."""
_REACH = "the {archive} archive can't be reached"
_OTHER = (
    "this machine can't run programs of the row's",
    "build it on such a machine, or apt-get install arch-test qemu-user-static binfmt-support",
)
_CAUSES = (
    ("No space left on device", "the disk of {folder} is full", room.REMEDY),
    ("Unable to locate package", "the suite lacks a package", "compare the base's `packages` in matrix.yaml"),
    ("no installation candidate", "the suite lacks a package", "compare the base's `packages` in matrix.yaml"),
    ("neither be executed natively", *_OTHER),
    ("foreign architecture support", *_OTHER),
    ("NO_PUBKEY", "the archive's key is unknown here", "apt-get install {keys}, or name its `keyring` in matrix.yaml"),
    ("is not signed", "the archive does not sign what it serves", "set {mirror} to another mirror"),
    ("Failed to fetch", _REACH, "check the network, http_proxy, or set {mirror}"),
    ("Could not resolve", _REACH, "check the network, http_proxy, or set {mirror}"),
    ("does not have a Release file", _REACH, "check http_proxy, or set {mirror}"),
)
"""What apt says, what that means, what helps."""


def command(
    base: Base,
    target: Path,
    *,
    setup: str,
    excludes: Iterable[str],
    authorities: str,
    mirrors: bool,
    keyring: str = "",
    machine: str = ARCH,
) -> list[str]:
    """The command line; hooks are the recipe's own text, so that they run where the checkout can't be seen."""
    options = [f"--dpkgopt={line}" for line in excludes]
    options += [f'--aptopt=Acquire::https::CAInfo "{authorities}"'] if authorities and '"' not in authorities else []
    options += ['--aptopt=Acquire::Check-Valid-Until "false"'] if mirrors else []  # a dated mirror is out of date
    options += [f"--keyring={keyring}", "--skip=check/signed-by"] if keyring else []  # else it names one that it knows
    return [
        PROGRAM,
        "--variant=apt",
        "--format=tar",
        f"--architectures={ARCHITECTURES[machine]}",
        f"--components={','.join(base.components)}",
        f"--include={','.join(sorted(base.packages))}",
        f"--setup-hook={setup}",
        *options,
        base.suite,
        str(target),
    ]


def surroundings(
    environment: Mapping[str, str], lines: str, *, merged: bool = False, machine: str = ARCH
) -> dict[str, str]:
    """The variables of the build: fixed ones, and from the caller's environment only what leads to the archive.

    apt reads the proxies' names in lower case.
    """
    given = {name.lower(): value for name, value in sorted(environment.items()) if name.lower() in PROXIES and value}
    fixed = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "DEBIAN_FRONTEND": "noninteractive",
        "SOURCE_DATE_EPOCH": str(LAYER_TIME),
        "TORCHKILN_ARCH": ARCHITECTURES[machine],
    }
    told = {"TORCHKILN_SOURCES": lines, "TORCHKILN_MERGED": MERGED if merged else ""}
    return given | fixed | {name: value for name, value in told.items() if value}


def run(
    base: Base,
    folder: Path,
    *,
    setup: str,
    excludes: Iterable[str],
    environment: Mapping[str, str],
    machine: str = ARCH,
) -> Path:
    """The tar of the userland, made below `folder`; BaseError says why there is none; HostError: what is lacking."""
    if missing := privilege.lacks(PROGRAM):
        raise HostError(missing.what, where=f"base {base.name}", remedy=missing.remedy)
    distribution = distributions.of(base)
    distributions.check_known(base, distribution)
    keyring = distributions.keyring(base, distribution)
    target = folder / "userland.tar"
    lines = distributions.sources(base, distribution, environment)
    variables = surroundings(environment, lines, merged=MERGED in base.packages, machine=machine)
    if os.geteuid() == 0:
        folder.chmod(0o755)  # apt downloads as a user of its own
        variables["TMPDIR"] = str(folder)  # so that `gc` finds what a kill left; others can't write here
    arguments = command(
        base,
        target,
        setup=setup,
        excludes=excludes,
        authorities=network.certificates(environment),
        mirrors=bool(lines),
        keyring=keyring,
        machine=machine,
    )
    said = [_redacted(line, variables) for line in _stream([*_apart(), *arguments], variables)]
    if said and said[-1] == "0":
        return target
    raise _failure(base, distribution, said[:-1], Path(variables.get("TMPDIR", "/tmp")))  # noqa: S108  as mmdebstrap


def _apart() -> tuple[str, ...]:
    """Namespaces for what root mounts; mmdebstrap makes its own for other users. Empty where the host forbids them."""
    if os.geteuid() != 0:
        return ()
    try:
        return _APART if process.run([*_APART, "true"]).returncode == 0 else ()
    except HostError:
        return ()


def _stream(arguments: list[str], variables: Mapping[str, str]) -> Iterator[str]:
    """What the program says, line by line, its steps noted as they come; last the exit status."""
    umask = os.umask(0o022)  # the tree's modes must not depend on the caller's
    try:
        child = process.start(arguments, env=variables, stdout=subprocess.DEVNULL)
    finally:
        os.umask(umask)
    try:
        for raw in child.stderr or ():
            line = raw.decode(errors="replace").rstrip()
            if line.startswith("I: ") and "hook" not in line and "tempdir" not in line:
                note(line.removeprefix("I: "))
            yield line
        yield str(child.wait())
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Let it unmount and remove what it made; kill the group only if it will not."""
    for number, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
        if child.poll() is not None:
            break
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(child.pid, number)
            child.wait(seconds)
    if child.stderr:
        child.stderr.close()


def _redacted(line: str, variables: Mapping[str, str]) -> str:
    """A proxy's address may hold a password."""
    for name in PROXIES:
        if name != "no_proxy" and variables.get(name):
            line = line.replace(variables[name], f"${name}")
    return line


def _failure(base: Base, distribution: Distribution, said: list[str], folder: Path) -> BaseError:
    text = "\n".join(said)
    cause, remedy = next(((what, remedy) for sign, what, remedy in _CAUSES if sign in text), ("it failed", ""))
    words = {"archive": distribution.name.capitalize(), "mirror": distribution.mirror, "keys": distribution.package}
    words["folder"] = room.place(folder)
    shown = [line[:300] for line in said if line.startswith(("E: ", "W: ", "dpkg: "))] or [line[:300] for line in said]
    return BaseError(
        f"mmdebstrap made no userland: {cause.format(**words)}\n" + "\n".join(f"  {line}" for line in shown[-_TAIL:]),
        where=f"base {base.name}",
        remedy=remedy.format(**words),
    )
