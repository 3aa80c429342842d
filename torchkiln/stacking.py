"""Which wheels share a layer, and in which order layers lie, so that nodes share unpacked ones too; pure."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil
from typing import TYPE_CHECKING

from torchkiln.errors import PlanError
from torchkiln.lock.lockfile import BIGGEST
from torchkiln.matrix.publishing import LAYER_LIMIT
from torchkiln.matrix.target import TRIO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchkiln.lock.lockfile import Pin
    from torchkiln.matrix.publishing import PublishTarget

ROOM = (80, 18, 16)
"""Layers for the wheels that rows share, their bytecode included, and for up to two additions.

Each has room of its own and lies on top of the others, so that an addition changes no layer below it.
"""
NVIDIA = ("nvidia-", "cuda-toolkit")
"""What the names of NVIDIA's wheels begin with; cuda-toolkit is a list of them, and holds nothing itself."""
APART = ("nvshmem", "cudnn", "nccl", "cusparselt", "cufile")
"""NVIDIA's libraries that PyTorch changes or adds while CUDA stays the same, those last that it did so most often."""
TORCH = (*TRIO, "triton", "pytorch-triton-rocm")
"""What changes together, with each release."""


def has_modules(pin: Pin) -> bool:
    """Whether bytecode is worth a layer: NVIDIA's wheels hold libraries and empty packages only."""
    return not pin.name.startswith(NVIDIA)


def _rank(pin: Pin) -> tuple[int, int, int, str]:
    """Where a wheel's layer lies: see `groups`."""
    if pin.name.startswith(NVIDIA):
        apart = next((place for place, name in enumerate(APART, start=1) if name in pin.name), 0)
        return 0, apart, 0, pin.name
    return 1, int(pin.name not in TORCH), -pin.weight, pin.name


def groups(pins: tuple[Pin, ...], room: int, max_bytes: int | None = None) -> tuple[tuple[Pin, ...], ...]:
    """Wheels in layer order, so that with their bytecode they take at most `room` layers: the smallest share one.

    An engine keys an unpacked layer by all below it, so what changes least lies lowest. First NVIDIA's wheels: those of
    the CUDA toolkit, which change with CUDA alone, then those that PyTorch replaces between two CUDAs (`APART`). Then
    torch and what is released with it, then everything else, the largest first. Each wheel's bytecode lies right above
    it. Of the committed rows, releases next to each other with the same CUDA share 1.88 (2.5 and 2.6), 1.65 (2.6, 2.7),
    1.08 (2.7, 2.8) and 1.25 GB (2.13, 2.14) above the base: 0.21, 0.45, 0.65 and 0.72 GB more than with all of NVIDIA's
    by name. Another version of one of the smaller wheels of torch25-cu124 makes an engine fetch 14 MB anew on average;
    46 if they lie by name, 69 if all bytecode lies above all wheels, 1,179 if torch lies above them.
    """
    ordered = sorted(pins, key=_rank)
    by_size = sorted(ordered, key=lambda pin: (pin.weight, pin.name))
    for shared in range(1, len(ordered) + 1):
        small = {pin.name for pin in by_size[:shared]} if shared > 1 else set()
        alone = tuple((pin,) for pin in ordered if pin.name not in small)
        grouped = (*alone, tuple(sorted(by_size[:shared], key=lambda pin: pin.name))) if small else alone
        if sum(_layers(group, max_bytes) for group in grouped) <= room:
            return grouped
    if pins:
        raise PlanError(f"{len(pins)} wheels and their bytecode do not go into {max(room, 0)} layers")
    return ()


def _layers(group: tuple[Pin, ...], max_bytes: int | None) -> int:
    """How many layers a group of wheels takes at most."""
    return part_count(group, max_bytes) + any(has_modules(pin) for pin in group)


def part_count(group: tuple[Pin, ...], max_bytes: int | None) -> int:
    """Into how many parts the files of wheels are split at most, so that no blob is larger.

    Layers differ from their wheels by a few per cent. Files go into the first part with room for them, so any two
    parts hold more than one could: n parts weigh more than n/2 full ones.
    """
    bulk = sum(pin.weight for pin in group) * 17 // 16 + (16 << 10)
    return 1 if max_bytes is None or bulk <= max_bytes else ceil(2 * bulk / max_bytes)


def rooms(layers: int) -> tuple[int, int, int]:
    """`ROOM`, or less of each where there are fewer layers for wheels: whether a row has additions plays no part."""
    more = [max(2, min(most, layers * most // sum(ROOM))) for most in ROOM[1:]]
    return min(ROOM[0], layers - sum(more)), more[0], more[1]


def refusal(parts: Sequence[tuple[Pin, ...]], place: PublishTarget, *, row: str, base: int, ours: int) -> PlanError:
    """Why the wheels of a row, part by part, have no room beside so many layers of its base and of ours.

    It is the number of layers if no size of them would help; else their size, and the wheel that it hits most is named.
    """
    bytes_, layers = place.max_layer_bytes, place.max_layers
    stated = f"matrix.yaml: publish_targets.{place.id}" if place.id else row
    fewest = _least(range(layers + 1, LAYER_LIMIT + 1), lambda most: _go(parts, most - base - ours, bytes_))
    if bytes_ is None or not _go(parts, layers - base - ours, None):
        return _too_few(parts, place, fewest, row=row, base=base, ours=ours)
    wheel = max((pin for part in parts for pin in part), key=lambda pin: (part_count((pin,), bytes_), pin.name))
    room = sum(rooms(layers - base - ours)[: len(parts)])
    enough = _least(
        range(bytes_ + 1, 2 * BIGGEST * sum(map(len, parts))), lambda most: _go(parts, layers - base - ours, most)
    )
    more = f", or max_layers of {fewest}" if fewest else ""
    alone = f"{wheel.name} {wheel.version} alone may take {part_count((wheel,), bytes_):,} layers"
    return PlanError(
        f"{alone} of at most {bytes_:,} bytes, and {row} has room for {room} layers of wheels and bytecode",
        where=f"{stated}.max_layer_bytes",
        remedy=f"max_layer_bytes of at least {_round(enough):,}{more}; by the sizes of wheels, which are all that is"
        " known before they are here: each of their files, and the base, must fit too, and may need more",
    )


def _too_few(
    parts: Sequence[tuple[Pin, ...]], place: PublishTarget, fewest: int, *, row: str, base: int, ours: int
) -> PlanError:
    """What a row takes at least, where the number of layers is too small whatever their size."""
    least = fewest or _least(range(1, 10**6), lambda most: _go(parts, most - base - ours, place.max_layer_bytes))
    own, *more = rooms(least - base - ours)
    needed = f"{base} of its base, up to {ours} for environment, toolkit and suite, {own} for wheels and their bytecode"
    stated = f"matrix.yaml: publish_targets.{place.id}.max_layers" if place.id else f"{row}: Torchkiln's own limit"
    better = f"max_layers of {least}" if fewest else "a base of fewer layers, or a publish target of larger ones"
    free = f"and {sum(more)} are kept for additions, so that one changes no layer, whether the row has any or not"
    what = f"{row} needs room for {least} layers at least, and may have {place.max_layers}: {needed}, {free}"
    return PlanError(what, where=stated, remedy=better)


def _go(parts: Sequence[tuple[Pin, ...]], layers: int, max_bytes: int | None) -> bool:
    """Whether wheels have room in so many layers of such a size."""
    try:
        for part, room in zip(parts, rooms(layers), strict=False):
            groups(part, room, max_bytes)
    except PlanError:
        return False
    return True


def _least(numbers: range, enough: Callable[[int], bool]) -> int:
    """The first number that is enough, as all above it are; 0 if none is."""
    place = bisect_left(numbers, x=True, key=enough)
    return numbers[place] if place < len(numbers) else 0


def _round(number: int) -> int:
    """Up to two digits, for people."""
    unit = int(10 ** max(0, len(str(number)) - 2))
    return ceil(number / unit) * unit
