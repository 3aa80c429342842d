"""Who we are at a registry: Docker's config and its credential helpers, else netrc; for that registry alone."""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from docker import auth as docker
from docker.errors import DockerException

from torchkiln import console, credentials, process
from torchkiln.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user and password, or what `docker login` got in their place."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity: str = field(default="", repr=False)
    """A refresh token: good for tokens only (distribution, "Docker Registry v2 authentication using OAuth2")."""
    said: str = field(default="", repr=False, compare=False)
    """What there is to say when a registry refuses it: where it was found, or why there is none."""

    @property
    def basic(self) -> str:
        """As `Authorization` has it (RFC 7617); empty if there is no password."""
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return f"Basic {pair}" if self.password else ""


NOBODY = Account()
UNREADABLE = (
    DockerException,
    HostError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    subprocess.TimeoutExpired,
)
"""What a file of another form raises, or a helper that is missing, fails, hangs or says something else."""


def find(environment: Mapping[str, str], host: str) -> Account:
    """What `docker login` keeps for a registry, else what netrc has; what equals NOBODY if neither has anything."""
    path = Path(environment.get("DOCKER_CONFIG") or Path(environment.get("HOME") or "/") / ".docker") / "config.json"
    vain = (
        f"no credentials for {host} were found in {path}{'' if path.exists() else ' (there is no such file)'} or netrc"
    )
    try:
        found = _docker(environment, path, host)
    except UNREADABLE as error:
        why = _words(error)
        console.warn(f"{path} gives no credentials for {host}: {why}")
        vain, found = f"{path} gives no credentials for {host}: {why}; netrc has none", NOBODY
    if found != NOBODY:
        return replace(found, said=f"the credentials from {path} were refused")
    known = credentials.find(environment, f"https://{host}")
    if known is None:
        return replace(NOBODY, said=vain)
    return Account(user=known[0], password=known[1], said="the credentials from netrc or uv's settings were refused")


def _words(error: BaseException) -> str:
    """Why there are none, without what stands in the file, or what a helper said."""
    if isinstance(error, _NoJSONError):
        return "it can't be read, since it is no JSON"
    if isinstance(error, PermissionError):
        return "it can't be read"
    return f"{type(error).__name__}, of the file or of its helper"


class _NoJSONError(ValueError):
    """A file that the SDK would take for one that says nothing."""


def _docker(environment: Mapping[str, str], path: Path, host: str) -> Account:
    """By the Docker SDK, which knows the file's forms, and by the helper that the file names for the registry."""
    if not path.is_file():
        return NOBODY
    try:
        json.loads(path.read_bytes())
    except ValueError as error:
        raise _NoJSONError from error
    config = docker.load_config(str(path))
    helper = config.get_credential_store(host)
    asked = _helped(environment, helper, host) if helper else {}
    entry = asked or docker.AuthConfig({"auths": config.auths}).resolve_authconfig(host) or {}
    found = {name.lower(): str(value) for name, value in entry.items() if value}
    return Account(
        user=found.get("username", ""), password=found.get("password", ""), identity=found.get("identitytoken", "")
    )


def _helped(environment: Mapping[str, str], helper: str, host: str) -> dict[str, str]:
    """What a helper says (docker-credential-helpers, "Development"), as the file would; nothing if it knows nothing.

    The SDK would wait without an end for one that hangs.
    """
    server = docker.INDEX_URL if host == docker.INDEX_NAME else host
    command = [f"docker-credential-{helper}", "get"]
    done = process.run(command, env=environment, stdin=server.encode(), timeout=credentials.PATIENCE)
    if b"credentials not found" in done.stdout:
        return {}
    said: dict[str, str] = json.loads(done.stdout)
    user, secret = said["Username"], said["Secret"]
    return {"identitytoken": secret} if user == docker.TOKEN_USERNAME else {"username": user, "password": secret}
