"""Wheel → layer: its deflate streams are copied between tar headers, never unpacked to disk.

The bytes depend on the wheels alone. The first time every member is inflated on its way, to check it and to know the
digest of the tar. A layer that is known is held against its digest instead.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

from torchkiln.errors import ConflictError, LayerMismatchError, WheelError
from torchkiln.layers import boundaries as memory
from torchkiln.layers import install, members, parts, pool
from torchkiln.layers.archive import layer, order
from torchkiln.layers.copier import Copier
from torchkiln.lock import layerlock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torchkiln.layers.archive import Archive
    from torchkiln.layers.install import Distribution, File
    from torchkiln.lock.lockfile import Pin
    from torchkiln.oci.image import Layer
    from torchkiln.oci.store import Store
    from torchkiln.specs import WheelSpec


def build(
    store: Store,
    spec: WheelSpec,
    paths: Mapping[str, Path],
    *,
    known: Layer | None = None,
    boundaries: Path | None = None,
) -> Layer:
    """The layer of a spec's wheels, found by sha256 in `paths`; LayerMismatchError if it is not the `known` one.

    WheelError if a wheel is damaged, lies about its content, or asks for something unsafe; ConflictError if two
    write one path with different content. Then no layer appears in the store. What is known is not checked again but
    for the blob's digest. `boundaries` is the folder where the ends of deflate streams are remembered.
    """
    if known is not None:
        try:
            return _build(store, spec, paths, known=known, boundaries=boundaries, checked=False)
        except (WheelError, LayerMismatchError):  # then all is looked at, to tell what is wrong: wheel, memory or lock
            pass
    try:
        return _build(store, spec, paths, known=known, boundaries=boundaries, checked=True)
    except LayerMismatchError as error:
        raise _differs(spec, error) from error


def _build(
    store: Store,
    spec: WheelSpec,
    paths: Mapping[str, Path],
    *,
    known: Layer | None,
    boundaries: Path | None,
    checked: bool,
) -> Layer:
    with ExitStack() as stack:
        files: dict[str, tuple[File, Copier]] = {}
        written: dict[Pin, Mapping[str, str]] = {}
        copiers: dict[Pin, Copier] = {}
        for pin in spec.pins:
            wheel = stack.enter_context(members.opened(paths[pin.sha256]))
            distribution = install.install(wheel)
            if distribution.name != pin.name:
                raise wheel.refuse(f"holds {distribution.name}, the lock says {pin.name}")
            remembered = {} if checked else memory.read(boundaries, pin.sha256)
            copiers[pin] = Copier(wheel=wheel, checked=checked, remembered=remembered)
            files |= {file.path: (file, copiers[pin]) for file in distribution.files}
            written[pin] = _hashes(distribution)
        _refuse_clashes(written)

        def fill(archive: Archive) -> None:
            for path in sorted(parts.held(spec.part, {path: file for path, (file, _) in files.items()}), key=order):
                file, copier = files[path]
                copier.add(archive, file)

        made = layer(store, spec.title, fill, known=known, hashed=checked)
    if boundaries is not None:
        for pin, copier in copiers.items():
            memory.write(boundaries, pin.sha256, copier.found)
    return made


def _differs(spec: WheelSpec, error: LayerMismatchError) -> LayerMismatchError:
    return LayerMismatchError(
        error.what,
        where=f"{spec.key}, wheels {', '.join(pin.filename for pin in spec.pins)}, layer format {spec.FORMAT}",
        remedy=layerlock.REMEDY,
    )


def contents(path: Path) -> Mapping[str, str]:
    """What a wheel writes: path in the image → hash as in RECORD, by its own word, without inflating it."""
    with members.opened(path) as wheel:
        return _hashes(install.install(wheel))


def requirements(path: Path) -> tuple[str, ...]:
    """What a wheel asks for: its Requires-Dist lines."""
    with members.opened(path) as wheel:
        return install.requirements(wheel)


def check_conflicts(wheels: Mapping[Pin, Path]) -> None:
    """ConflictError naming every path that two wheels write differently, whatever their order; equal copies pass."""
    _refuse_clashes({pin: contents(path) for pin, path in wheels.items()})


def _hashes(distribution: Distribution) -> Mapping[str, str]:
    return {file.path: file.hash for file in distribution.files}


def _refuse_clashes(written: Mapping[Pin, Mapping[str, str]]) -> None:
    owners: dict[str, tuple[str, str]] = {}
    folders: dict[str, str] = {}
    clashes: list[str] = []
    ordered = sorted(written, key=lambda pin: (pin.name, pin.filename))
    for pin in ordered:
        for path, content in written[pin].items():
            owner, other = owners.setdefault(path, (pin.filename, content))
            if other != content:
                clashes.append(f"/{path} by {owner} and {pin.filename}")
            folders.update(dict.fromkeys(install.parents(path), pin.filename))
    clashes += [
        f"/{path} by {owners[path][0]}, a folder of {folders[path]}" for path in sorted(owners.keys() & folders)
    ]
    clashes += [
        f"{one.name} by {one.filename} and {two.filename}" for one, two in pairwise(ordered) if one.name == two.name
    ]
    if clashes:
        more = f"; and {len(clashes) - 5} more" if len(clashes) > 5 else ""  # noqa: PLR2004  readable
        raise ConflictError(
            f"wheels write the same path with different content: {'; '.join(clashes[:5])}{more}",
            remedy="leave one of them out, or pin versions that do not clash",
        )


def job(
    store: Store, spec: WheelSpec, paths: Mapping[str, Path], known: Layer | None = None, boundaries: Path | None = None
) -> Layer:
    """`build` with its arguments by place, as a pool of workers takes them."""
    return build(store, spec, paths, known=known, boundaries=boundaries)


def build_all(
    store: Store,
    specs: Sequence[WheelSpec],
    paths: Mapping[str, Path],
    done: Callable[[WheelSpec, Layer], None] = lambda _spec, _layer: None,
    *,
    workers: int = 0,
    known: Mapping[str, Layer] = MappingProxyType({}),
    boundaries: Path | None = None,
) -> tuple[Layer, ...]:
    """The layers of all specs, in their order, built in parallel, largest first; `done` hears of each as it ends.

    `workers` 0 means one for each processor. `known` has layers by their specs' keys. The first error of `build`
    ends the others' work and is raised.
    """
    largest = sorted(specs, key=lambda spec: (-sum(pin.weight for pin in spec.pins), spec.key))
    jobs = [
        (store, spec, {pin.sha256: paths[pin.sha256] for pin in spec.pins}, known.get(spec.key), boundaries)
        for spec in largest
    ]
    built: dict[str, Layer] = {}
    for index, made in pool.each(job, jobs, workers=workers):
        built[largest[index].key] = made
        done(largest[index], made)
    return tuple(built[spec.key] for spec in specs)
