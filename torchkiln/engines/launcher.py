"""The last steps before a command, from inside its sandbox: take the asked user, drop privileges, execute.

bubblewrap cannot change the user without a user namespace, and answers 1 for a command that does not exist. The
host's `setpriv` and `env` can do both. They are shown inside with the host's own loader and libraries, in one
read-only folder, since an image may have other ones or none.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from torchkiln import process
from torchkiln.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchkiln.engines.inside import Account

FOLDER = "/.torchkiln"
PROGRAMS = ("setpriv", "env")
KEPT = ("chown", "dac_override", "fowner", "fsetid", "kill", "net_bind_service", "setgid", "setpcap", "setuid")
"""Capabilities of uid 0: those of Docker, without the ones that are dangerous where no device filter exists."""
_LIBRARY = re.compile(r"(?:^|\s)(/\S+)")


@dataclass(frozen=True, slots=True)
class Files:
    """Path on the host → name in FOLDER."""

    shown: tuple[tuple[str, str], ...]
    loader: str


@cache
def files() -> Files:
    """Programs, loader and libraries of this host; HostError if one is missing."""
    shown: dict[str, str] = {}
    loader = ""
    for name in PROGRAMS:
        path = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin:/run/current-system/sw/bin")
        if path is None:
            raise HostError(f"{name} is not installed", remedy="apt-get install util-linux coreutils")
        listed = process.run(["ldd", path]).stdout.decode()
        for library in _LIBRARY.findall(listed):
            base = library.rsplit("/", 1)[1]
            shown.setdefault(library, base)
            loader = base if base.startswith("ld-") else loader
        shown[path] = name
    return Files(tuple(shown.items()), loader)


def chain(account: Account, env: Mapping[str, str], argv: tuple[str, ...], *, owners: bool) -> list[str]:
    """What bubblewrap executes so that `argv` runs as `account`; with `owners` this is real root.

    `LD_*` reaches the command only: the host's programs must not load the image's libraries.
    """
    start = [f"{FOLDER}/{files().loader}", "--library-path", FOLDER]
    for_command = [f"{name}={value}" for name, value in env.items() if name.startswith("LD_")]
    switch = [
        "--pdeathsig",
        "KILL",
    ]  # a change of user clears the one that bubblewrap set; see `guard` for another user
    if owners:
        bounding = "".join(f",+{name}" for name in KEPT) if account.uid == 0 else ""
        groups = ["--groups", ",".join(map(str, account.groups))] if account.groups else ["--clear-groups"]
        ids = ["--reuid", str(account.uid), "--regid", str(account.gid), *groups]
        switch = [*ids, "--inh-caps=-all", "--ambient-caps=-all", f"--bounding-set=-all{bounding}", *switch]
    return [*start, f"{FOLDER}/setpriv", *switch, *start, f"{FOLDER}/env", "-u", "PWD", *for_command, *argv]
