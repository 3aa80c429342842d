"""Whether a lock is the one a row needs: of its inputs, versions, variant and platform, and complete; pure."""

from __future__ import annotations

import shlex
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from torchkiln.errors import ROW, LockError, StaleLockError, TorchkilnError
from torchkiln.lock import closure, sections, tags
from torchkiln.lock.lockfile import Inputs
from torchkiln.lock.sections import LockFile
from torchkiln.matrix.target import TRIO
from torchkiln.oci import digest as digests
from torchkiln.oci.compression import GZIP

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torchkiln.lock.lockfile import Lock, Pin
    from torchkiln.matrix.target import Release, Target

INDEXES = "the package index and download.pytorch.org, or a mirror of that named by TORCHKILN_PYTORCH_INDEX,"
EMPTY = LockFile()


def asked(target: Target) -> Inputs:
    """What the resolver is asked for what rows share.

    A row on the PyTorch index asks for the suffix, so no other build will do.
    """
    suffix = "" if target.accelerator.by_default else f"+{target.accelerator.variant}"
    trio = tuple(f"{name}=={version}{suffix}" for name, version in _trio(target.release).items() if version)
    return Inputs(
        requirements=(*trio, *sorted(target.release.companions)),
        python=target.base.python,
        platform=f"{target.arch} glibc {target.wheel_glibc}",
        index="default" if target.accelerator.by_default else target.accelerator.variant,
    )


def additions(target: Target) -> dict[str, tuple[str, ...]]:
    """What a row asks for besides, by the name of the section that holds it, in the order in which they are added."""
    flavour, extra = target.flavour, target.extra
    own = {flavour.id: flavour.requirements} if flavour.requirements else {}
    return own | ({f"{flavour.id}-with-{extra.id}": extra.requirements} if extra else {})


def added(target: Target, requirements: Iterable[str], above: Iterable[Pin]) -> Inputs:
    """What the resolver is asked for an addition on top of pins."""
    checksum = digests.of_bytes("".join(f"{text}\n" for text in constraints(above)).encode())
    return replace(asked(target), requirements=tuple(sorted(requirements)), constraints=checksum)


def constraints(pins: Iterable[Pin]) -> tuple[str, ...]:
    """Pins as requirements, so that an addition agrees with them."""
    return tuple(sorted(f"{pin.name}=={pin.version}" for pin in pins))


def file_of(target: Target, section: str, folder: Path) -> Path:
    """The lock file that holds a part; that of a user's additions lies beside their list."""
    if target.extra and section.endswith(f"-with-{target.extra.id}"):
        return target.extra.file.with_name(f"{target.extra.file.stem}.{target.lock_name}")
    return folder / target.lock_name


def command(target: Target) -> str:
    """What writes the lock of a row."""
    return f"./inv lock {options(target)}"


def options(target: Target) -> str:
    """What names a row on the command line, a user's additions included."""
    more = f" --extra-requirements {shlex.quote(str(target.extra.file))}" if target.extra else ""
    return f"--target {replace(target, extra=None).id}{more}"


def made(target: Target) -> str:
    """What names a row on the command line, as it is made for its publish target."""
    place = f" --for {target.publish_target.id}" if target.publish_target.id else ""
    compression = f" --compression {target.compression}" if target.compression != GZIP else ""
    return f"{options(target)}{place}{compression}"


def build(target: Target) -> str:
    """What builds a row, as it is made for its publish target."""
    return f"./inv build {made(target)}"


@contextmanager
def named(target: Target) -> Iterator[None]:
    """Remedies of errors name the row, where those who raise them know only its locks, layers or blobs."""
    try:
        yield
    except TorchkilnError as error:
        row = options(target) if "./inv lock" in error.remedy else made(target)  # a lock is for every publish target
        error.remedy = error.remedy.replace(ROW, row)
        raise


def lacking(target: Target, file: LockFile, beside: LockFile = EMPTY) -> str:
    """What a row has no lock for, in words; empty if it has all."""
    if file.common is None:
        return f"there is no images/locks/{target.lock_name}"
    missing = [name for name in additions(target) if name not in {**file.sections, **beside.sections}]
    return f"nobody has locked {missing[0]} for it" if missing else ""


def unlocked(target: Target, what: str) -> LockError:
    """What to say of a row without a lock, and where one can be written."""
    indexes = "the package index" if target.accelerator.by_default else INDEXES
    return LockError(f"{target.id} is unlocked: {what}", remedy=f"{command(target)}, where {indexes} can be reached")


def row(target: Target, file: LockFile, beside: LockFile = EMPTY) -> Lock:
    """What a row uses of the lock file that it shares, and of the one beside a user's additions; held against the row.

    LockError for a part that is not there or does not fit, StaleLockError for one made from other inputs.
    """
    lock = sections.joined(fresh(target, file, beside))
    check_fits(lock, target)
    return lock


def fresh(target: Target, file: LockFile, beside: LockFile = EMPTY) -> dict[str, Lock]:
    """The parts that a row uses; StaleLockError for one that was made from other inputs than the row has now."""
    used, wanted = parts(target, file, beside), additions(target)
    above: list[Pin] = []
    for name, part in used.items():
        check_fresh(part, added(target, wanted[name], above) if name else asked(target), target, name)
        above += part.pins
    return used


def parts(target: Target, file: LockFile, beside: LockFile = EMPTY) -> dict[str, Lock]:
    """The parts that a row uses, by name, the shared one first; LockError if one is not there."""
    what = lacking(target, file, beside)
    if what or file.common is None:
        raise unlocked(target, what)
    return {"": file.common} | {name: {**file.sections, **beside.sections}[name] for name in additions(target)}


def _trio(release: Release) -> dict[str, str]:
    return dict(zip(TRIO, (release.torch, release.torchvision, release.torchaudio), strict=True))


def check_fresh(lock: Lock, wanted: Inputs, target: Target, section: str = "") -> None:
    """StaleLockError, saying what changed, if a part of a row's lock was made from other inputs than these."""
    if lock.inputs != wanted.checksum:
        changes = list(_changes(lock.asked, wanted)) or ["its heading was edited by hand"]
        whose = f"section {section} of the lock of {target.id}" if section else f"the lock of {target.id}"
        raise StaleLockError(
            f"{whose} is stale: {'; '.join(changes)}",
            where=_where(target, section),
            remedy=command(target),
        )


def _where(target: Target, section: str = "") -> str:
    return str(file_of(target, section, Path("images/locks")))


def _changes(before: Inputs, after: Inputs) -> Iterator[str]:
    yield from (f"no longer asks for {text}" for text in before.requirements if text not in after.requirements)
    yield from (f"now asks for {text}" for text in after.requirements if text not in before.requirements)
    for word in ("python", "platform", "index"):
        old, new = getattr(before, word), getattr(after, word)
        if old != new:
            yield f"{word} was {old or 'not stated'}, is {new}"
    if before.constraints != after.constraints:
        yield "the pins that it was resolved on top of changed"


def check_fits(lock: Lock, target: Target) -> None:
    """LockError with every pin that is not what the row says, by version, variant, file name or platform."""
    pins = {pin.name: pin for pin in lock.pins}
    arch, python, glibc = target.arch, target.base.python, target.base.glibc
    supported = tags.supported(python, arch, glibc)
    problems = [problem for name, version in _trio(target.release).items() for problem in _wrong(pins, name, version)]
    problems += [problem for name in TRIO if name in pins for problem in _variant(pins[name], target)]
    problems += [problem for pin in lock.pins for problem in _misnamed(pin)]
    problems += [
        f"{name} is pinned twice" for name, count in Counter(pin.name for pin in lock.pins).items() if count > 1
    ]
    problems += [
        f"{pin.filename} is no wheel for Python {python}, {arch}, glibc {glibc}"
        for pin in lock.pins
        if tags.rank(pin.filename, supported) is None
    ]
    problems += [
        problem
        for problem in closure.unmet(lock, {}, python=python, machine=arch)
        if not any(f" needs {name}==" in problem for name in TRIO)  # told above, in fewer words
    ]
    if problems:
        raise LockError(
            f"the lock does not fit {target.id}: {'; '.join(problems)}",
            where=_where(target),
            remedy=command(target),
        )


def _wrong(pins: dict[str, Pin], name: str, version: str) -> Iterator[str]:
    pin = pins.get(name)
    if pin is None and version:
        yield f"{name} {version} is missing"
    elif pin and not version:
        yield f"{name} {pin.version} is pinned, and the row goes without"
    elif pin and _public(pin.version) != _public(version):
        yield f"{name} is pinned at {pin.version}, the row says {version}"


def _public(version: str) -> str:
    return version.partition("+")[0]


def _variant(pin: Pin, target: Target) -> Iterator[str]:
    """A suffix must be the row's; without one, a compiled wheel is the variant that PyPI serves for that torch."""
    suffix = pin.version.partition("+")[2]
    variant = target.accelerator.variant
    if suffix and suffix != variant:
        yield f"{pin.name} {pin.version} is built for {suffix}, the row is {variant}"
    elif not suffix and not target.accelerator.by_default and not pin.filename.endswith("-none-any.whl"):
        yield f"{pin.name} {pin.version} without a suffix is another build than {variant}"


def _misnamed(pin: Pin) -> Iterator[str]:
    """The file name says the same as the pin (PEP 427, binary distribution format: file name convention)."""
    try:
        name, version, _, _ = parse_wheel_filename(pin.filename)
        if (name, version) != (canonicalize_name(pin.name), Version(pin.version)):
            yield f"{pin.filename} is not {pin.name} {pin.version}"
    except (InvalidWheelFilename, InvalidVersion):
        yield f"{pin.filename} is not a wheel's name"
