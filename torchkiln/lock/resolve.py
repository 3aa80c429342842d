"""Inputs → pins, by asking the indexes through uv; and where the wheels of a lock can be had today."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from torchkiln import console, network
from torchkiln.errors import FetchError, HashMismatchError, LockError, TorchkilnError
from torchkiln.lock import additions, pages, tags
from torchkiln.lock.index import BUILT, Offer, ask, page, root
from torchkiln.lock.lockfile import Inputs, Lock, Pin
from torchkiln.matrix import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from packaging.tags import Tag

    from torchkiln.matrix.target import Target

FIND_LINKS = "TORCHKILN_FIND_LINKS"


def wheels(
    asked: Inputs,
    target: Target,
    environment: Mapping[str, str],
    *,
    constraints: Sequence[str] = (),
    preferences: Mapping[str, str] | None = None,
    hashes: Mapping[str, str] | None = None,
) -> tuple[Pin, ...]:
    """One wheel for each package that uv chooses, as pip would pick it; less what `constraints` already pin.

    `constraints` are exact pins (`name==version`) under which more is resolved, `preferences` versions by name, kept
    to where they still do. `hashes` are known sha256 by file name, those of the facts unless others are given;
    another one is a HashMismatchError. LockError names every package that has no wheel for the platform.
    """
    known = facts.hashes(facts.read()) if hashes is None else hashes
    chosen = choose(asked, target, environment, constraints=constraints, preferences=preferences)
    _refuse_unhashed(asked, [offer for offer in chosen if offer.filename not in known], environment)
    pins = tuple(pin(offer, environment) for offer in chosen)
    _hold_against(pins, known)
    return pins


def _refuse_unhashed(asked: Inputs, offers: Iterable[Offer], environment: Mapping[str, str]) -> None:
    """Of what is built for a variant, nothing is locked whose hash neither its index nor the facts state."""
    remote = [offer for offer in offers if offer.name in BUILT and not offer.url.startswith("file:")]
    if asked.index == "default" or not remote:
        return
    index = page(asked.index, environment)
    stated = pages.hashed(index, sorted({offer.name for offer in remote}), environment)
    if bare := [offer.filename for offer in remote if offer.filename not in stated]:
        what = f"the index states no hash of {', '.join(bare)}, and the facts know none"
        remedy = f"get the file, check where it comes from, and put it into a folder named by {FIND_LINKS}"
        raise LockError(what, where=index, remedy=remedy)


def choose(
    asked: Inputs,
    target: Target,
    environment: Mapping[str, str],
    *,
    constraints: Sequence[str] = (),
    preferences: Mapping[str, str] | None = None,
    links: Sequence[Path] = (),
) -> list[Offer]:
    """The best wheel of each package that uv chooses; `links` are all there is of the PyTorch index, if given."""
    supported = tags.supported(target.base.python, target.arch, target.wheel_glibc)

    def answer(requirements: tuple[str, ...]) -> tuple[Offer, ...]:
        at_hand = links or _links(asked, requirements, environment, supported)
        return ask(asked, requirements, environment, at_hand, constraints=constraints, preferences=preferences)

    def known(requirements: tuple[str, ...]) -> tuple[Offer, ...]:
        offers = answer(requirements)
        if target.extra:
            additions.refuse_trio(target, named((*requirements, *constraints)), (offer.name for offer in offers))
        return offers

    requirements = _requirements(asked, constraints, target)
    offers = known(requirements) if asked.index == "default" else _bound(known, requirements)
    return _choose([offer for offer in offers if offer.name not in named(constraints)], supported, target.id)


def _requirements(asked: Inputs, constraints: Sequence[str], target: Target) -> tuple[str, ...]:
    """What is asked for, and what else must come from the PyTorch index: only a project's own requirements are bound.

    So a torch that an addition wants is the row's; and so is the Triton that a ROCm build of torch wants.
    """
    if asked.index == "default":
        return asked.requirements
    bound = [text for text in constraints if named([text]) <= set(BUILT)]
    triton = facts.rocm_triton(facts.read(), target.release.torch, target.base.python)
    needs = target.accelerator.kind == "rocm" and triton and triton not in named((*asked.requirements, *bound))
    return (*asked.requirements, *bound, *([triton] if needs else []))


def _bound(answer: Callable[[tuple[str, ...]], tuple[Offer, ...]], requirements: tuple[str, ...]) -> tuple[Offer, ...]:
    """What uv chooses; asked again, with the name bound, for a build of a variant that an addition brought in."""
    offers = answer(requirements)
    strays = {offer.name for offer in offers} & set(BUILT) - named(requirements)
    return _bound(answer, (*requirements, *sorted(strays))) if strays else offers


def named(requirements: Iterable[str]) -> set[str]:
    """The packages that requirements name."""
    return {canonicalize_name(Requirement(text).name) for text in requirements}


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
    built = BUILT if asked.index != "default" else ()
    there = [pin for pin in pins if (pin.name in built) == own]
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
    stated = _stated(environment)
    for folder in stated:
        if not folder.is_dir():
            console.warn(f"{FIND_LINKS} names {folder}, which is no folder")
    return tuple(folder for folder in stated if folder.is_dir())


def _stated(environment: Mapping[str, str]) -> tuple[Path, ...]:
    return tuple(Path(part) for part in environment.get(FIND_LINKS, "").split(os.pathsep) if part)


def unused(pins: Sequence[Pin], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Why wheels that could not be had did not come from the folders at hand either, where somebody may expect them."""
    none = [
        f"{folder} {'is no folder' if folder.exists() else 'does not exist'}"
        for folder in _stated(environment)
        if not folder.is_dir()
    ]
    other = [
        f"{folder / pin.filename} has another sha256 than the lock pins"
        for folder in _stated(environment)
        for pin in pins
        if (folder / pin.filename).is_file()
    ]
    return (*none, *other)


def _links(
    asked: Inputs, requirements: Iterable[str], environment: Mapping[str, str], supported: Mapping[Tag, int]
) -> tuple[Path, ...]:
    """Wheels built for the variant in the folders at hand, if all are there; the rest always comes from the index."""
    if asked.index == "default":
        return ()
    wanted = [requirement for requirement in map(Requirement, requirements) if named([str(requirement)]) <= set(BUILT)]
    files = {file.name: file for folder in reversed(folders(environment)) for file in folder.glob("*.whl")}
    usable = [files[name] for name in sorted(files) if tags.rank(name, supported) is not None]
    found = {file: requirement for file in usable for requirement in wanted if meets(file.name, requirement)}
    return tuple(found) if len(set(map(str, found.values()))) == len(wanted) else ()


def meets(filename: str, requirement: Requirement) -> bool:
    """Whether a wheel is what is asked for, by its name and version."""
    name, version, _, _ = parse_wheel_filename(filename)
    return name == canonicalize_name(requirement.name) and requirement.specifier.contains(version, prereleases=True)


def _choose(offers: Sequence[Offer], supported: Mapping[Tag, int], target: str) -> list[Offer]:
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


def pin(offer: Offer, environment: Mapping[str, str]) -> Pin:
    """What a lock says of an offer; the server is asked for a size that the index leaves open."""
    size = offer.size if offer.size is not None else _size(offer, environment)
    return Pin(name=offer.name, version=offer.version, sha256=offer.sha256, filename=offer.filename, size=size)


def _size(offer: Offer, environment: Mapping[str, str]) -> int:
    """As the server states it, where the index does not."""
    try:
        with network.client(environment, connections=1) as client:
            length = client.head(offer.url).raise_for_status().headers.get("Content-Length", "")
    except httpx.HTTPError as error:
        raise LockError(f"the size of {offer.filename} cannot be learnt: {error}") from error
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
