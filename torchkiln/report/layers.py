"""Layers of plans for a terminal: what each weighs, and which rows share it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from torchkiln import sharing
from torchkiln.report.rows import counted
from torchkiln.report.tables import columns, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from torchkiln.sharing import Family, Layer, Weight

SHOWN = 3
"""So many groups of rows are told in words; --json has every row."""


def plan(found: Family, row: str) -> Table:
    """The layers of a row, lowest first."""
    shown = columns("#", "layer", "size", "shared with", "key")
    shown.columns[2].justify = "right"
    ids = [plan.target for plan in found.plans]
    layers = found.layers_of(row)
    for number, layer in enumerate(layers, start=1):
        kind, _, digest = layer.spec.key.rpartition("-")
        others = _others(layer, row, ids)
        shown.add_row(str(number), plain(layer.spec.title), size(layer.weight), others, f"{kind}-{digest[:12]}")
    return shown


def said(found: Family, row: str) -> str:
    """What a row weighs in all, and without what others have too."""
    whole, own = found.total_of(row), found.own_of(row)
    others = f"in none of the {len(found.plans) - 1} other rows that can be planned"
    return f"{row}: {_layers(len(found.keys[row]))}, {_told(whole)}; {others}: {_told(own)}. {LEGEND}"


LEGEND = "~ is estimated by the wheels, ? is known once it is made"


def _told(weight: Weight) -> str:
    """A weight in a sentence."""
    known, missing = size(replace(weight, unknown=0)), f"{_layers(weight.unknown)} of unknown size"
    return known if not weight.unknown else f"{known} and {missing}" if weight.bytes else missing


def _layers(count: int) -> str:
    return counted(count, "layer")


def _others(layer: Layer, row: str, ids: Sequence[str]) -> str:
    others = [name for name in layer.rows if name != row]
    groups = sharing.grouped(others, [name for name in ids if name != row])
    more = f" and {len(groups) - SHOWN} more" if len(groups) > SHOWN else ""
    if groups == ("*",):
        return f"all {len(others)} other rows"
    return f"{_rows(len(others))}: {', '.join(groups[:SHOWN])}{more}" if others else "-"


def _rows(count: int) -> str:
    return counted(count, "row")


def size(weight: Weight) -> str:
    """Bytes for people: `~` marks an estimate, `?` layers that are not in it."""
    if not weight.bytes and weight.unknown:
        return "?"
    scale, unit = next(((scale, unit) for scale, unit in SCALES if weight.bytes >= scale), (1, "B"))
    number = f"{weight.bytes / scale:.{2 if unit == 'GB' else 1 if scale > 1 else 0}f} {unit}"
    return f"{'~' if weight.estimated else ''}{number}{' + ?' if weight.unknown else ''}"


SCALES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def family(found: Family) -> Table:
    """What every row weighs, what of it is in no other row, and all of them together."""
    shown = columns("target", "layers", "all", "in no other row")
    for column in shown.columns[1:]:
        column.justify = "right"
    for plan in found.plans:
        whole, own = found.total_of(plan.target), found.own_of(plan.target)
        shown.add_row(plan.target, str(len(plan.layers)), size(whole), size(own))
    return shown


def family_said(found: Family) -> str:
    """What the rows weigh together, what sharing saves, and which rows could not be planned."""
    once = f", {_told(found.unique)} with each layer counted once ({found.ratio:.1f} times less)"
    engine = f"; an engine that unpacks all rows fetches {_told(found.unpacked)}"
    saved = once + engine if len(found.plans) > 1 else ""
    told = f"{_rows(len(found.plans))}: {_told(found.summed)} in all{saved}. {LEGEND}"
    return "\n".join((told, *_left_out(found)))


def _left_out(found: Family) -> Sequence[str]:
    """Rows that can't be planned, by what is wrong with them."""
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for name, error in found.left_out.items():
        reasons[type(error).__name__].append(name)
    ids = [*(plan.target for plan in found.plans), *found.left_out]
    return [f"left out, {WORDS[kind]}: {', '.join(sharing.covering(names, ids))}" for kind, names in reasons.items()]


WORDS = {
    "LockError": "without a lock that fits (./inv lock)",
    "StaleLockError": "with a stale lock (./inv lock)",
    "MatrixError": "refused by lint (./inv matrix)",
    "PlanError": "too many layers, or too large ones",
}
