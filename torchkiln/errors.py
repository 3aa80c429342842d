"""Every error a user can meet, one exit code each; this module imports nothing of the package.

An error says what failed, where (target, key path, file), and what to try; never a password (`redact`).
Codes 20 and 21 are verdicts of a validation, the same that validate/ ends with (validate/verdict.py).
"""

from __future__ import annotations

import re

ROW = "--target ID"
"""In a remedy: the row that this is about, which whoever knows it puts in its place (`lock.fit.named`)."""
_USERINFO = re.compile(r"//(?:[^/\n'\"]*\S|[^/\s]*:\S*)@(?=\S)(?!sha\d+:)")
"""Of an address (RFC 3986, 3.2.1); also where the password has a slash or a space in it, which no address may have."""


def redact(text: str) -> str:
    """A message without user names and passwords in addresses: it may quote what somebody wrote into a file."""
    return _USERINFO.sub("//***@", text)


class TorchkilnError(Exception):
    """What failed (`what`), where (`where`), and what to try (`remedy`); all without passwords."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(redact(what))
        self.what = redact(what)
        self.where = redact(where)
        self.remedy = redact(remedy)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.remedy:
            lines.append(f"  try: {self.remedy}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        """Travel between processes with all three parts."""
        return (_rebuild, (type(self), self.what, self.where, self.remedy))


def _rebuild(kind: type[TorchkilnError], what: str, where: str, remedy: str) -> TorchkilnError:
    return kind(what, where=where, remedy=remedy)


class UsageError(TorchkilnError):
    """The command line asks for something that does not exist or makes no sense."""

    exit_code = 2


class MatrixError(TorchkilnError):
    """matrix.yaml does not say something that can be built."""

    exit_code = 3


class UnknownTargetError(TorchkilnError):
    """No target has that id or matches that glob."""

    exit_code = 4


class LockError(TorchkilnError):
    """A lock is missing, unreadable, or does not fit its row."""

    exit_code = 5


class StaleLockError(TorchkilnError):
    """A lock was made from other inputs than the row has now."""

    exit_code = 6


class FetchError(TorchkilnError):
    """A file could not be downloaded."""

    exit_code = 7


class HashMismatchError(TorchkilnError):
    """Bytes are not the ones that were pinned."""

    exit_code = 8


class WheelError(TorchkilnError):
    """A wheel breaks the wheel or zip format, or asks for something unsafe."""

    exit_code = 9


class ConflictError(TorchkilnError):
    """Two inputs write the same path with different content."""

    exit_code = 10


class BaseError(TorchkilnError):
    """The base layers could not be made, or the archive moved on and --frozen was given."""

    exit_code = 11


class StoreError(TorchkilnError):
    """The local store holds something it should not, or lacks something it should hold."""

    exit_code = 12


class EngineError(TorchkilnError):
    """An engine is missing, refuses, or failed while running a command."""

    exit_code = 13


class HostError(TorchkilnError):
    """This machine lacks something: a program, disk space, permission."""

    exit_code = 14


class ImageError(TorchkilnError):
    """An image reference or its content is not what it says."""

    exit_code = 15


class VerifyError(TorchkilnError):
    """Recomputed digests differ from the recorded ones."""

    exit_code = 16


class PlanError(TorchkilnError):
    """A row cannot become an image: too many layers, an unusable combination."""

    exit_code = 17


class PushError(TorchkilnError):
    """An image could not be put into a registry; no tag was set."""

    exit_code = 18


class LayerMismatchError(TorchkilnError):
    """A layer was made that is not the one which images/locks/layers.lock knows."""

    exit_code = 19


class ValidationFailedError(TorchkilnError):
    """At least one required check failed."""

    exit_code = 20


class ValidationIncompleteError(TorchkilnError):
    """No check failed, but a required one did not run."""

    exit_code = 21
