"""Wheel → layer: its deflate streams are copied between tar headers, never unpacked to disk.

The bytes depend on the wheels alone. Every member is inflated on its way, in pieces, to check it against the zip's
CRC-32 and size and against RECORD, and to know the digest of the tar.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

from isal import isal_zlib

from torchkiln.errors import ConflictError, LayerMismatchError
from torchkiln.layers import install, members, parts, pool
from torchkiln.layers.archive import Archive, Entry, layer, order
from torchkiln.layers.inflate import BUFFER, CorruptStreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torchkiln.layers.install import Distribution, File
    from torchkiln.layers.members import Member, Zip
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
    boundaries: Path | None = None,  # noqa: ARG001  the folder where block boundaries of wheels are remembered
) -> Layer:
    """The layer of a spec's wheels, found by sha256 in `paths`; LayerMismatchError if it is not the `known` one.

    WheelError if a wheel is damaged, lies about its content, or asks for something unsafe; ConflictError if two
    write one path with different content. Then no layer appears in the store.
    """
    with ExitStack() as stack:
        files: dict[str, tuple[File, Zip]] = {}
        written: dict[Pin, Mapping[str, str]] = {}
        for pin in spec.pins:
            wheel = stack.enter_context(members.opened(paths[pin.sha256]))
            distribution = install.install(wheel)
            if distribution.name != pin.name:
                raise wheel.refuse(f"holds {distribution.name}, the lock says {pin.name}")
            files |= {file.path: (file, wheel) for file in distribution.files}
            written[pin] = _hashes(distribution)
        _refuse_clashes(written)

        def fill(archive: Archive) -> None:
            for path in sorted(parts.held(spec.part, {path: file for path, (file, _) in files.items()}), key=order):
                _add(archive, *files[path])

        made = layer(store, spec.title, fill)
    if known is not None and made.descriptor.digest != known.descriptor.digest:
        store.discard(made.descriptor.digest)
        raise _differs(spec, known, made)
    return made


def _differs(spec: WheelSpec, known: Layer, made: Layer) -> LayerMismatchError:
    return LayerMismatchError(
        f"the layer of {spec.title} is not the one that is locked: expected {known.descriptor.digest}, "
        f"made {made.descriptor.digest}",
        where=f"{spec.key}, wheels {', '.join(pin.filename for pin in spec.pins)}, layer format {spec.FORMAT}",
        remedy="lock the layers again, if Torchkiln's layer format was changed on purpose",
    )


def _add(archive: Archive, file: File, wheel: Zip) -> None:
    archive.add(Entry(path=file.path, kind="file", mode=file.mode, size=file.size))
    if isinstance(file.content, bytes):
        archive.gzip.write(file.content)
        return
    member = file.content
    algorithm = file.hash.partition("=")[0]
    found = hashlib.new(algorithm)
    copy = _store if member.method == members.STORED else _copy
    try:
        crc = copy(archive, wheel, member, found)
    except CorruptStreamError as error:
        raise wheel.refuse(f"{member.name} {error}") from error
    if crc != member.crc:
        raise wheel.refuse(f"{member.name}: expected CRC-32 {member.crc:08x} by the zip, found {crc:08x}")
    if (actual := install.encode(algorithm, found.digest())) != file.hash:
        raise wheel.refuse(f"{member.name}: expected {file.hash} by RECORD, found {actual}")


def _copy(archive: Archive, wheel: Zip, member: Member, found: hashlib._Hash) -> int:
    return archive.gzip.copy(wheel.source(member), member.size, found)


def _store(archive: Archive, wheel: Zip, member: Member, found: hashlib._Hash) -> int:
    """A member that the zip did not compress is compressed now; its CRC-32."""
    if member.size != member.compressed:
        raise CorruptStreamError(f"is stored in {member.compressed} bytes, and said to hold {member.size}")
    source, buffer = wheel.source(member), memoryview(bytearray(BUFFER))
    crc = total = 0
    while count := source(buffer):
        archive.gzip.write(buffer[:count])
        found.update(buffer[:count])
        crc = isal_zlib.crc32(buffer[:count], crc)
        total += count
    if total < member.size:
        raise CorruptStreamError("is cut off")
    return crc


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
