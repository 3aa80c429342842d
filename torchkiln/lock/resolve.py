"""Target → Lock; and where the wheels of a lock can be had today."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

from torchkiln import console, network
from torchkiln.errors import FetchError, HashMismatchError, LockError, TorchkilnError
from torchkiln.lock import fit, lockfile, tags
from torchkiln.lock.index import Offer, ask, resolver, root
from torchkiln.lock.lockfile import Inputs, Lock, Pin
from torchkiln.matrix import facts
from torchkiln.matrix.target import TRIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from packaging.tags import Tag

    from torchkiln.matrix.target import Target

FIND_LINKS = "TORCHKILN_FIND_LINKS"


def resolve(target: Target, environment: Mapping[str, str], hashes: Mapping[str, str] | None = None) -> Lock:
    """A lock for a row: one wheel for each package that uv chooses, as pip would pick it.

    `hashes` are known sha256 by file name, those of the facts unless others are given; another one is a
    HashMismatchError. LockError names every package that has no wheel for the platform.
    """
    asked = fit.asked(target)
    supported = tags.supported(target.base.python, target.arch, target.base.glibc)
    offers = ask(asked, asked.requirements, environment, _links(asked, environment, supported))
    chosen = _choose(offers, supported, target.id)
    pins = [_pin(offer, environment) for offer in chosen]
    _hold_against(pins, facts.hashes(facts.read()) if hashes is None else hashes)
    lock = lockfile.make(asked, pins, resolver())
    fit.check_fits(lock, target)
    return lock


def locate(lock: Lock, pins: Iterable[Pin], environment: Mapping[str, str]) -> Mapping[str, str]:
    """Addresses by sha256 for pins of a lock, asked anew; FetchError if the index does not have them (any more)."""
    wanted = tuple(pins)
    requirements = tuple(f"{pin.name}=={pin.version}" for pin in wanted)
    try:
        offers = ask(lock.asked, requirements, environment, (), dependencies=False)
    except LockError as error:
        raise _nowhere(lock.asked, wanted, error, environment) from error
    found = {offer.sha256: offer.url for offer in offers}
    if gone := [pin for pin in wanted if pin.sha256 not in found]:
        raise _gone(gone, offers)
    return {pin.sha256: found[pin.sha256] for pin in wanted}


def _nowhere(asked: Inputs, pins: Sequence[Pin], error: LockError, environment: Mapping[str, str]) -> FetchError:
    """Which index failed, what was to come from it, and what is missing besides; the first failure ends uv's search."""
    remedy = f"check the network and proxies, or put the files into a folder named by {FIND_LINKS}"
    failed = re.search(r"Failed to fetch: `?([^`\s]+)", error.what)
    if failed is None:
        return FetchError(f"no index says where to get {_names(pins)}: {error.what}", remedy=remedy)
    own = asked.index != "default" and _place(failed[1]).startswith(_place(root(environment)))
    trio = TRIO if asked.index != "default" else ()
    there = [pin for pin in pins if (pin.name in trio) == own]
    besides = [pin for pin in pins if pin not in there]
    what = f"the {'PyTorch' if own else 'package'} index failed, which was asked for {_names(there)}"
    what += f"; missing too, from another index: {_names(besides)}" if besides else ""
    return FetchError(f"{what}\n{error.what}", where=_place(failed[1]), remedy=remedy)


def _place(address: str) -> str:
    """Host and path, which tell indexes apart whatever credentials they are called with."""
    parts = urlsplit(address)
    return parts.netloc.rpartition("@")[2] + parts.path


def _names(pins: Sequence[Pin]) -> str:
    return ", ".join(f"{pin.name} {pin.version}" for pin in pins[:6]) + (f" and {len(pins) - 6} more" * (len(pins) > 6))  # noqa: PLR2004


def _gone(pins: list[Pin], offers: Sequence[Offer]) -> TorchkilnError:
    """The pinned file vanished, or the index now has other bytes under its name."""
    same_name = {offer.filename: offer.sha256 for offer in offers}
    for pin in pins:
        if other := same_name.get(pin.filename):
            return HashMismatchError(
                f"the index serves other bytes as {pin.filename}",
                where=f"expected {pin.sha256}, offered {other}",
                remedy="find out why before trusting either; ./inv lock would take the new file",
            )
    files = ", ".join(pin.filename for pin in pins)
    remedy = f"put it into a folder named by {FIND_LINKS}, or choose another version: ./inv lock"
    return FetchError(f"the index no longer has {files}", remedy=remedy)


def folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Folders of wheels that are looked in before any index; a warning names each that is none."""
    named = [Path(part) for part in environment.get(FIND_LINKS, "").split(os.pathsep) if part]
    for folder in named:
        if not folder.is_dir():
            console.warn(f"{FIND_LINKS} names {folder}, which is no folder")
    return tuple(folder for folder in named if folder.is_dir())


def _links(asked: Inputs, environment: Mapping[str, str], supported: tuple[Tag, ...]) -> tuple[Path, ...]:
    """Wheels of a suffixed trio in the folders at hand, if all are there; the rest always comes from the index."""
    if asked.index == "default":
        return ()
    wanted = [text.partition("==") for text in asked.requirements if text.partition("==")[0] in TRIO]
    files = [file for folder in folders(environment) for file in sorted(folder.glob("*.whl"))]
    usable = [file for file in files if tags.rank(file.name, supported) is not None]
    found = [file for name, _, version in wanted for file in usable if file.name.startswith(f"{name}-{version}-")]
    return tuple(found) if len({file.name.partition("-")[0] for file in found}) == len(wanted) else ()


def _choose(offers: Sequence[Offer], supported: tuple[Tag, ...], target: str) -> list[Offer]:
    """The best wheel of each package; LockError names those that have none."""
    ranked = [(tags.rank(offer.filename, supported), offer) for offer in offers]
    usable = [(place, offer) for place, offer in ranked if place is not None and offer.sha256]
    best = {offer.name: offer for _, offer in sorted(usable, key=lambda pair: pair[0])}
    problems = [
        f"{offer.name} {offer.version} has no {'hash' if place else 'wheel for this platform'}"
        for place, offer in ranked
        if offer.name not in best
    ]
    if problems:
        raise LockError(
            "; ".join(dict.fromkeys(problems)), where=target, remedy="choose another version in matrix.yaml"
        )
    return list(best.values())


def _pin(offer: Offer, environment: Mapping[str, str]) -> Pin:
    size = offer.size if offer.size is not None else _size(offer, environment)
    return Pin(name=offer.name, version=offer.version, sha256=offer.sha256, filename=offer.filename, size=size)


def _size(offer: Offer, environment: Mapping[str, str]) -> int:
    """As the server states it, where the index does not."""
    try:
        with network.client(environment, connections=1) as client:
            length = client.head(offer.url).raise_for_status().headers.get("Content-Length", "")
    except httpx.HTTPError as error:
        raise LockError(f"the size of {offer.filename} cannot be learnt: {network.redact(str(error))}") from error
    if not length.isdecimal():
        raise LockError(f"the index does not say how big {offer.filename} is")
    return int(length)


def _hold_against(pins: Iterable[Pin], hashes: Mapping[str, str]) -> None:
    for pin in pins:
        expected = hashes.get(pin.filename, pin.sha256)
        if expected != pin.sha256:
            raise HashMismatchError(
                f"{pin.filename} is not the file that others have",
                where=f"expected {expected} (torchkiln/matrix/facts.yaml), found {pin.sha256}",
                remedy="find out where the file came from",
            )
