"""torch.compile works for a uid without passwd row, a home of its own, USER and LOGNAME."""

from __future__ import annotations

import json
import os
import pwd
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Callable

from validate.child import judged
from validate.expect import Expect
from validate.model import Check, Context, Result, failed, not_run, passed
from validate.proof import equal, prove

CHECK = Check(
    title="torch.compile under an unknown uid, without a home",
    explanation="Platforms start containers under arbitrary uids. Cache folders must come from variables of the image "
    "and be writable for any uid; see cache.folders.",
    needs=("torch.import", "toolchain.extension"),
    seconds=300,
    plain=True,
)
UID, GID = 1042, 0
NAMES = ("USER", "LOGNAME", "LNAME", "USERNAME")
"""What getpass asks before it looks for a passwd row."""
_NAMELESS = re.compile(r"uid_\d+")
HOMELESS = ("", "/")
"""Docker's runtime sets HOME=/ where nothing else says what it is; nobody but root may write there."""


def run(_expect: Expect, _context: Context) -> Result:
    """In this process if it is such a user already, else in a child that becomes one, if it may."""
    known = known_by(os.environ, _passwd_name())
    if not known:
        return compiles()
    if os.getuid() != 0:
        return not_run(f"needs a container started as {UID}:{GID} without HOME and USER; this user has {known}")
    return as_other_user(compiles)


def known_by(environ: Mapping[str, str], name: str) -> str:
    """What tells who this user is, in words; empty for a uid that nobody knows. Pure.

    `uid_<n>` is what the image itself calls a nameless uid.
    """
    stated = {variable: environ.get(variable, "") for variable in NAMES}
    told = [f"{variable}={value}" for variable, value in stated.items() if value and not _NAMELESS.fullmatch(value)]
    home = environ.get("HOME", "")
    told += [] if home in HOMELESS else [f"HOME={home}"]
    return ", ".join([f"the passwd row of {name}", *told] if name else told)


def compiles() -> Result:
    """Compile into the cache folders that the image names."""
    import torch

    def chain(x: torch.Tensor) -> torch.Tensor:
        return x * x + torch.cos(x)

    example = torch.randn(1000)
    proof = prove(chain, (example,))
    data = {"device": "CPU", "uid": os.getuid(), "gid": os.getgid(), "home": os.environ.get("HOME"), **proof.data}
    if proof.problems:
        return failed("; ".join(proof.problems), **data)
    if not equal(torch, proof.output, chain(example)):
        return failed("compiled results differ from eager", **data)
    return passed(f"CPU: {os.getuid()}:{os.getgid()}, compiled in {data['compile_seconds']} s", **data)


def as_other_user(work: Callable[[], Result]) -> Result:
    """The answer of a child process that has become UID:GID and forgotten its names."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(writer, work)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        document = json.loads(stream.read() or b"{}")
    os.waitpid(child, 0)
    return Result(**document) if document else failed("its process ended without an answer")


def _answer(writer: int, work: Callable[[], Result]) -> None:
    try:
        result = _become() or work()
    except Exception as error:  # noqa: BLE001  any exception is the answer
        result = judged(error)
    with os.fdopen(writer, "wb") as stream:
        stream.write(json.dumps(asdict(result), default=str).encode())
    os._exit(0)  # the parent's cleaning up is not this process's


def _become() -> Result | None:
    """Another user from here on, or the reason why not."""
    for name in ("HOME", *NAMES):
        os.environ.pop(name, None)
    try:
        os.setgroups([])
        os.setgid(GID)
        os.setuid(UID)
    except OSError as error:
        return not_run(f"this container may not change its user: {error.strerror}")
    os.chdir("/")
    startup = sys.modules.get("torchkiln_startup")
    if startup is not None:
        startup.start()  # as at the start of this user's own Python
    return None


def _passwd_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
