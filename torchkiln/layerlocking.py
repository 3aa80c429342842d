"""layers.lock: written by building rows, and held against what all rows plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchkiln import pipeline, planning
from torchkiln.assembly import claims
from torchkiln.console import note, warn
from torchkiln.home import write_atomically
from torchkiln.layers import boundarylock
from torchkiln.lock import fit, layeraudit, layerlock, rows
from torchkiln.matrix import facts
from torchkiln.specs import AdoptionSpec, BaseSpec, BytecodeSpec, ToolkitSpec, WheelSpec, compressed_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchkiln.lock.layeraudit import Findings
    from torchkiln.matrix.target import Target
    from torchkiln.oci.image import Layer
    from torchkiln.plan import ImagePlan
    from torchkiln.project import Project

LOCKED = (AdoptionSpec, BaseSpec, BytecodeSpec, ToolkitSpec, WheelSpec)
"""What is made of locked things alone, and takes time to make."""


def lock_layers(project: Project, targets: Sequence[Target]) -> Mapping[str, Layer]:
    """Build rows and note in layers.lock what their layers are; those that are new there, by key.

    Lines that no row of the matrix plans any more go. What is made otherwise than planned is not noted, as a base is
    of whose lock the archive has moved on, nor what only a user's own additions need, which no other check would know.
    What is here on a registry's word alone is made first. LayerMismatchError for a layer that is there otherwise: it is
    not replaced.
    """
    new: dict[str, Layer] = {}
    for target in targets:
        planned = planning.planned(project, target)
        wanted, lasting = locked_keys(planned), locked_keys(planning.planned(project, _plain(target)))
        _disown(project, planned)
        built = pipeline.build(project, target, None)
        with project.home.lock("layers.lock"):
            known = layerlock.read(project.layer_lock)
            found = {
                compressed_key(spec.key, built.plan.compression): layer
                for spec, layer in built.made
                if isinstance(spec, LOCKED)
            }
            if moved := [layer.title for key, layer in found.items() if key not in wanted]:
                warn(
                    f"not noted, since its lock is of something else: {', '.join(moved)}; {fit.command(target)} --base"
                )
            if own := sorted(layer.title for key, layer in found.items() if key in wanted - lasting):
                note(f"not noted, since they are made of your own additions: {', '.join(own)}")
            fresh = {key: layer for key, layer in found.items() if key in lasting and key not in known}
            kept = _without_stale(project, {**known, **fresh}, targets)
            if kept.keys() != known.keys():
                write_atomically(project.layer_lock, layerlock.render(kept).encode())
            _note_boundaries(project, targets, built.plan)
        new |= fresh
    return new


def _disown(project: Project, plan: ImagePlan) -> None:
    """Have layers of which there is only a registry's word made here: every machine is to make these bytes."""
    keys = {*plan.keys, *(spec.key for spec in plan.layers)}
    if claimed := claims.forget(project.home, keys, layerlock.read(project.layer_lock).keys()):
        note(f"made here, since only a registry says what they are: {len(claimed)} layers")


def _note_boundaries(project: Project, targets: Sequence[Target], plan: ImagePlan) -> None:
    """Write into boundaries.lock what is remembered of a row's wheels; lines of wheels that no row has any more go."""
    known = boundarylock.read(project.boundary_lock)
    found = {**boundarylock.large(project.home.boundaries, _wheels([plan])), **known}
    plans = _of_family(project, targets)
    kept = found if plans is None else {sha256: found[sha256] for sha256 in found.keys() & _wheels(plans)}
    if kept != known:
        write_atomically(project.boundary_lock, boundarylock.render(kept).encode())


def _wheels(plans: Iterable[ImagePlan]) -> set[str]:
    """By sha256."""
    specs = (spec for plan in plans for spec in plan.layers if isinstance(spec, WheelSpec))
    return {pin.sha256 for spec in specs for pin in spec.pins}


def _plain(target: Target) -> Target:
    """The row without a user's own additions, which lie on top of it and change none of its layers."""
    return replace(target, extra=None)


def locked_keys(plan: ImagePlan) -> frozenset[str]:
    """The keys that layers.lock has for a row."""
    return frozenset(compressed_key(spec.key, plan.compression) for spec in plan.layers if isinstance(spec, LOCKED))


def _without_stale(project: Project, known: Mapping[str, Layer], targets: Sequence[Target]) -> Mapping[str, Layer]:
    """Lines of layers.lock less those that no row plans; all where it can't be told, as while a lock is stale."""
    plans = _of_family(project, targets)
    if plans is None:
        return known
    gone = layeraudit.stale(known, {key for plan in plans for key in locked_keys(plan)})
    for key in gone:
        note(f"no row plans it any more, its line goes: {known[key].title} ({key})")
    return {key: layer for key, layer in known.items() if key not in gone}


def _of_family(project: Project, targets: Sequence[Target]) -> Sequence[ImagePlan] | None:
    """What all rows of the matrix plan, and these; None where that can't be told."""
    matrix = project.family()
    plans, bad = _plans(project, (*matrix.targets, *map(_plain, targets))) if matrix else ((), ())
    return None if bad or matrix is None else plans


def audit_layers(project: Project, targets: Sequence[Target]) -> Findings:
    """Hold layers.lock against what all these rows plan; nothing is found while another lock is no good, which is told.

    Until that is mended nobody knows which lines are its row's, or whether a row that has some was ever locked itself.
    """
    plans, bad = _plans(project, targets)
    if bad:
        warn(f"layers.lock is not held against the rows: first mend the locks of {', '.join(bad)}")
        return layeraudit.Findings()
    return layeraudit.audit(layerlock.read(project.layer_lock), {one.target: locked_keys(one) for one in plans})


def _plans(project: Project, targets: Sequence[Target]) -> tuple[Sequence[ImagePlan], Sequence[str]]:
    """Of each row that has locks; and the rows that have some that are no good, since those must be mended first."""
    every = {row.id: row for row in targets}
    found = planning.family(project, tuple(every.values()), facts.read())
    return found.plans, [name for name in found.left_out if rows.state(project.locks, every[name]) != "unlocked"]
