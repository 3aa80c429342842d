"""Lock ↔ requirements text, headed by its inputs' checksum."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One wheel: exactly this file."""

    name: str
    """Normalised (PEP 503)."""
    version: str
    """As in the lock; with a local suffix only if the index gives one."""
    sha256: str
    """64 hex digits."""
    filename: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """All wheels of a row, sorted by name."""

    inputs: str
    """Checksum of what the resolver was asked: `sha256:` and hex."""
    pins: tuple[Pin, ...]
    digest: str
    """sha256 of the lock file's bytes, for labels: `sha256:` and hex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseLock:
    """The Debian packages a base is expected to hold."""

    packages: tuple[tuple[str, str], ...]
    """(name, version), sorted by name."""
    digest: str
    """sha256 of the lock file's bytes: `sha256:` and hex."""

    @property
    def python(self) -> str:
        """Upstream version of the interpreter, for example `3.11.2`; empty if the base lists none."""
        for name, version in self.packages:
            if name.startswith("libpython3.") and name.endswith("-minimal"):
                return version.split(":")[-1].split("-")[0]
        return ""
