"""Who we are at a registry: Docker's config and its credential helpers, else netrc; for that registry alone."""

from __future__ import annotations

import base64
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from docker import auth as docker
from docker.errors import DockerException

from torchkiln import console, credentials

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user and password, or what `docker login` got in their place."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity: str = field(default="", repr=False)
    """A refresh token: good for tokens only (distribution, "Docker Registry v2 authentication using OAuth2")."""

    @property
    def basic(self) -> str:
        """As `Authorization` has it (RFC 7617); empty if there is no password."""
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return f"Basic {pair}" if self.password else ""


NOBODY = Account()


def find(environment: Mapping[str, str], host: str) -> Account:
    """What `docker login` keeps for a registry, else what netrc has; NOBODY if neither has anything."""
    found = _docker(environment, host)
    if found != NOBODY:
        return found
    known = credentials.find(environment, f"https://{host}")
    return Account(user=known[0], password=known[1]) if known else NOBODY


def _docker(environment: Mapping[str, str], host: str) -> Account:
    """By the Docker SDK, which knows the file's forms and asks the helpers that it names."""
    folder = environment.get("DOCKER_CONFIG") or Path(environment.get("HOME") or "/") / ".docker"
    path = Path(folder) / "config.json"
    if not path.is_file():
        return NOBODY
    try:
        with warnings.catch_warnings(action="ignore"):  # a helper that is missing is told below
            config = docker.load_config(str(path), credstore_env=dict(environment))
            entry = docker.resolve_authconfig(config, host) or {}
    except (DockerException, ValueError, KeyError, TypeError, OSError) as error:
        console.warn(f"{path} gives no credentials for {host}: {type(error).__name__}, of the file or of its helper")
        return NOBODY
    found = {name.lower(): str(value) for name, value in entry.items() if value}
    return Account(
        user=found.get("username", ""), password=found.get("password", ""), identity=found.get("identitytoken", "")
    )
