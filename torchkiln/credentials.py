"""User and password for an address, found where uv finds them: netrc, the indexes of its configuration, keyring.

They live in memory, for the requests they are meant for. Those of an index serve its own scheme, host and port only.
"""

from __future__ import annotations

import netrc
import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from torchkiln import console, process
from torchkiln.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "TORCHKILN_PYTORCH_INDEX")
PORTS = {"http": 80, "https": 443}
PATIENCE = 60
"""Seconds that a keyring has, in which somebody may have to unlock it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """An index that uv is told of, with what that says about credentials."""

    address: str
    """Without user and password."""
    user: str = ""
    password: str = ""

    @property
    def realm(self) -> tuple[str, str, int]:
        """What its credentials are for."""
        return realm(self.address)


def realm(address: str) -> tuple[str, str, int]:
    """Scheme, host and port."""
    parts = urlsplit(address)
    return parts.scheme, parts.hostname or "", parts.port or PORTS.get(parts.scheme, 0)


def find(environment: Mapping[str, str], address: str) -> tuple[str, str] | None:
    """User and password for an address; None if nobody has any."""
    found = _netrc(environment, realm(address)[1])
    named = [index for index in indexes(environment) if index.realm == realm(address)]
    stated = ((index.user, index.password) for index in named if index.password)
    return found or next(stated, None) or _keyring(environment, named)


def _netrc(environment: Mapping[str, str], host: str) -> tuple[str, str] | None:
    file = Path(environment.get("NETRC") or Path(environment.get("HOME", "/")) / ".netrc")
    try:
        entry = netrc.netrc(file).authenticators(host)
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError):
        return None
    return (entry[0], entry[2]) if entry else None


def indexes(environment: Mapping[str, str]) -> tuple[Index, ...]:
    """Every index that uv is told of, by the environment and then by its files."""
    words = [word for name in INDEXES for word in environment.get(name, "").split()]
    listed = [re.fullmatch(r"(?:(?P<name>[\w.-]+)=)?(?P<url>.+)", word) for word in words]
    named = [(found["name"] or "", found["url"]) for found in listed if found]
    stated = (_index(environment, name, url) for name, url in (*named, *_configured(environment)))
    return tuple(index for index in stated if index)


def _index(environment: Mapping[str, str], name: str, url: str) -> Index | None:
    """Its address, and credentials from there or from UV_INDEX_<NAME>_USERNAME and _PASSWORD.

    None for what is no address: uv complains, and an error of ours could show a password.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port, parts.hostname
    except ValueError:
        return None
    prefix = f"UV_INDEX_{re.sub(r'[^A-Z0-9]', '_', name.upper())}" if name else ""
    user = environment.get(f"{prefix}_USERNAME") or unquote(parts.username or "")
    password = environment.get(f"{prefix}_PASSWORD") or unquote(parts.password or "")
    return Index(address=_bare(parts), user=user, password=password)


def _bare(parts: SplitResult) -> str:
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _configured(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Names and addresses; what has another form than uv's is passed over."""
    for settings in _settings(environment):
        pip = settings.get("pip")
        for table in (settings, pip if isinstance(pip, dict) else {}):
            indexes = [index for index in _list(table.get("index")) if isinstance(index, dict)]
            yield from ((str(index.get("name", "")), str(index.get("url", ""))) for index in indexes)
            yield from (("", str(url)) for url in (table.get("index-url"), *_list(table.get("extra-index-url"))) if url)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _settings(environment: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """What is in uv's files outside of projects; one that cannot be read is uv's to complain about."""
    if environment.get("UV_NO_CONFIG"):
        return
    own = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/")) / ".config"
    usual = (Path(own) / "uv/uv.toml", Path("/etc/uv/uv.toml"))
    for path in (Path(environment["UV_CONFIG_FILE"]),) if environment.get("UV_CONFIG_FILE") else usual:
        try:
            yield tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue


def _keyring(environment: Mapping[str, str], indexes: list[Index]) -> tuple[str, str] | None:
    """As uv asks the program of that name, if it is told to: for the address of the index, then for its host."""
    told = [settings.get("keyring-provider", "") for settings in _settings(environment)]
    if (environment.get("UV_KEYRING_PROVIDER") or next(filter(None, told), "")) != "subprocess":
        return None
    for index in indexes:
        for service in (index.address, urlsplit(index.address).netloc):
            if found := _asked(environment, service, index.user):
                return found
    return None


def _asked(environment: Mapping[str, str], service: str, user: str) -> tuple[str, str] | None:
    command = ["keyring", "get", service, user] if user else ["keyring", "--mode", "creds", "get", service]
    try:
        done = process.run(command, env=environment, timeout=PATIENCE)
    except (HostError, PermissionError):
        return None  # uv warns of a keyring that is not there
    except subprocess.TimeoutExpired:
        console.warn(f"keyring gave no answer within {PATIENCE} s")
        return None
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode != 0 or len(lines) != (1 if user else 2):
        return None
    return (user, lines[0]) if user else (lines[0], lines[1])
