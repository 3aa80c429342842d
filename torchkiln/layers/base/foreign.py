"""Images that others made as bases: judged by their layers, and completed by one small layer of ours.

Of such an image its layers are kept and nothing else: variables, entrypoint, user and labels are our own config's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchkiln.console import note
from torchkiln.errors import BaseError, PlanError
from torchkiln.layers.archive import Entry, order, write_layer
from torchkiln.layers.base import BaseResult, recipe, survey, userland
from torchkiln.lock import baselock
from torchkiln.oci.image import recorded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchkiln.home import Home
    from torchkiln.layers.archive import Content
    from torchkiln.layers.base.recipe import Recipe
    from torchkiln.layers.base.survey import Survey
    from torchkiln.lock.baselock import BaseLock
    from torchkiln.matrix.target import Base
    from torchkiln.oci.image import Config, Layer
    from torchkiln.oci.store import Store
    from torchkiln.specs import AdoptionSpec, ForeignSpec

KIND = "foreign"
"""The folder of images/bases with what is laid over such images."""


def lock(
    home: Home, store: Store, base: Base, layers: Sequence[Layer], *, machine: str, source: str, config: str
) -> BaseLock:
    """The lock of an image whose layers are in the store; BaseError names all that ours need and it lacks."""
    found = survey.take(home, store, layers, base)
    _refuse(found, base, machine)
    return baselock.of_image(layers, source=source, config=config, python=survey.python(found, base))


def tell_dropped(base: Base, config: Config) -> None:
    """Say which settings of the image do not count."""
    said = [f"variables {', '.join(sorted(config.env))}"] if config.env else []
    said += ["entrypoint"] if config.entrypoint else []
    said += [f"user {config.user}"] if config.user else []
    if said:
        note(f"base {base.name}: its layers are kept, not its {', '.join(said)}: the row's own count")


def build(home: Home, store: Store, specs: Sequence[ForeignSpec], adoption: AdoptionSpec) -> BaseResult:
    """The image's layers, which the store has, and ours on top; BaseError names all that the image lacks."""
    shipped = recipe.read(KIND)
    if adoption.recipe != shipped.digest:
        raise PlanError(f"base {adoption.base.name} was planned with another recipe", where=adoption.recipe)
    layers = [replace(spec.layer, title=spec.title) for spec in specs]
    with home.lock(adoption.key):
        ours = recorded(home.lookup(adoption.key))
        if ours is None or not store.has(ours.descriptor):
            found = survey.take(home, store, layers, adoption.base)
            _refuse(found, adoption.base, adoption.arch)
            ours = write_layer(store, adoption.title, entries(found, shipped))
            home.record(adoption.key, ours.to_json())
    return BaseResult(layers=(*layers, ours), packages=adoption.lock)


def entries(found: Survey, shipped: Recipe) -> list[tuple[Entry, Content]]:
    """What the layer of ours holds: the user with a home, a folder for everybody, the recipe's files."""
    home = Entry(path="home/torch", kind="directory", mode=0o775, uid=userland.UID)
    folders = (home, Entry(path="workspace", kind="directory", mode=0o1777))
    laid: dict[str, tuple[Entry, Content]] = {entry.path: (entry, None) for entry in folders}
    number = str(userland.UID)
    for path, row, before in ((survey.PASSWD, userland.PASSWD_ROW, number), (survey.SHADOW, userland.SHADOW_ROW, "")):
        target = found.real(path)
        there = found.files.get(target)
        if there and not there.data.startswith(b"torch:") and b"\ntorch:" not in there.data:
            entry = Entry(path=target, kind="file", mode=there.mode, uid=there.uid, gid=there.gid)
            laid[target] = (entry, _with(there.data, row.encode(), before.encode()))
    for path, data in shipped.rootfs.items():
        laid[path] = (Entry(path=path, kind="file", mode=0o644), data)
    return sorted(laid.values(), key=lambda pair: order(pair[0].path))


def _with(rows: bytes, ours: bytes, number: bytes) -> bytes:
    """Our row before any other of that number, since the first one is the number's name (getpwuid(3)); else last."""
    lines = [line + b"\n" for line in rows.splitlines() if line.strip()]
    same = [place for place, line in enumerate(lines) if number and line.split(b":")[2:3] == [number]]
    place = same[0] if same else len(lines)
    return b"".join([*lines[:place], ours, *lines[place:]])


def _refuse(found: Survey, base: Base, machine: str) -> None:
    lacks = survey.lacks(found, base, machine)
    if lacks:
        raise BaseError(
            "the image can't be a base:\n" + "\n".join(f"  {problem}" for problem in lacks),
            where=f"base {base.name}",
            remedy="add what is missing where the image is made, or correct the base in matrix.yaml",
        )
