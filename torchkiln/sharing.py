"""Plans of a family → what their layers weigh before any is made, and which rows share them; pure.

A layer weighs what its blob has in bytes. That is known exactly once it was made with this cache. Before, a layer of
wheels is estimated by its wheels, whose streams it copies: 88 layers of 11.8 GB differed from their wheels by 0.01 % in
all, each by -0.2 to 3 % (a wheel of 3 kB by 14 %). In zstd it will be smaller than that. Nothing is known of other
layers before they are made.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchkiln.plan import to_json
from torchkiln.specs import WheelSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchkiln.errors import TorchkilnError
    from torchkiln.plan import ImagePlan
    from torchkiln.specs import LayerSpec, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """Bytes of layers, as well as they are known."""

    bytes: int = 0
    """Of the layers that are known or estimated."""
    estimated: int = 0
    """How many layers are estimated."""
    unknown: int = 0
    """How many layers are not in `bytes`."""

    def __add__(self, other: Weight) -> Weight:
        return Weight(
            bytes=self.bytes + other.bytes,
            estimated=self.estimated + other.estimated,
            unknown=self.unknown + other.unknown,
        )

    def to_json(self) -> dict[str, int]:
        """Bytes, and how many layers they are only estimated for or leave out."""
        return {"bytes": self.bytes, "estimated_layers": self.estimated, "unknown_layers": self.unknown}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer of the family."""

    spec: LayerSpec
    weight: Weight
    rows: tuple[str, ...]
    """Ids of the rows that have it, in matrix order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Planned rows, and every layer that they are made of."""

    plans: tuple[ImagePlan, ...]
    keys: Mapping[str, tuple[str, ...]]
    """Of each row, its layers' keys, lowest first."""
    layers: Mapping[str, Layer]
    """By key."""
    left_out: Mapping[str, TorchkilnError]
    """Rows that can't be planned, and why."""

    def layers_of(self, row: str) -> tuple[Layer, ...]:
        """Lowest first."""
        return tuple(self.layers[key] for key in self.keys[row])

    def total_of(self, row: str) -> Weight:
        """All of a row."""
        return total(self.layers_of(row))

    def own_of(self, row: str) -> Weight:
        """What no other row has."""
        return total(layer for layer in self.layers_of(row) if layer.rows == (row,))

    def only(self, rows: Sequence[str]) -> Family:
        """Some of the rows; their layers still know every row that has them."""
        keys = {row: own for row, own in self.keys.items() if row in rows}
        needed = {key for own in keys.values() for key in own}
        return Family(
            plans=tuple(plan for plan in self.plans if plan.target in keys),
            keys=keys,
            layers={key: layer for key, layer in self.layers.items() if key in needed},
            left_out={row: why for row, why in self.left_out.items() if row in rows},
        )

    @property
    def summed(self) -> Weight:
        """What the rows would weigh if they shared nothing."""
        return sum((self.total_of(plan.target) for plan in self.plans), Weight())

    @property
    def unique(self) -> Weight:
        """What they weigh, each layer counted once."""
        return total(self.layers.values())

    @property
    def unpacked(self) -> Weight:
        """What an engine fetches to unpack all rows: it knows an unpacked layer by all below it (config.md, ChainID).

        So each layer counts once for every different stack that it lies on.
        """
        stacks = {keys[:height] for keys in self.keys.values() for height in range(1, len(keys) + 1)}
        return total(self.layers[stack[-1]] for stack in stacks)

    @property
    def ratio(self) -> float:
        """How many times as much the rows would weigh if they shared nothing."""
        return self.summed.bytes / self.unique.bytes if self.unique.bytes else 1.0


def total(layers: Iterable[Layer]) -> Weight:
    """Their weights together."""
    return sum((layer.weight for layer in layers), Weight())


def family(
    plans: Sequence[ImagePlan], made: Mapping[str, int], left_out: Mapping[str, TorchkilnError] | None = None
) -> Family:
    """Plans side by side; `made` has the bytes of layers that were made before, by key."""
    keys = {plan.target: plan.keys for plan in plans}
    specs = {key: spec for plan in plans for key, spec in zip(keys[plan.target], plan.layers, strict=True)}
    rows: defaultdict[str, list[str]] = defaultdict(list)
    for row, own in keys.items():
        for key in own:
            rows[key].append(row)
    layers = {
        key: Layer(spec=spec, weight=weight(spec, made.get(key)), rows=tuple(rows[key])) for key, spec in specs.items()
    }
    return Family(plans=tuple(plans), keys=keys, layers=layers, left_out=left_out or {})


def weight(spec: LayerSpec, made: int | None) -> Weight:
    """What a layer weighs: as it was made, else as its wheels."""
    if made is not None:
        return Weight(bytes=made)
    sizes = [pin.size for pin in spec.pins if pin.size is not None] if isinstance(spec, WheelSpec) else []
    if isinstance(spec, WheelSpec) and len(sizes) == len(spec.pins):
        return Weight(bytes=_share(sum(sizes), spec.part) if spec.part else sum(sizes), estimated=1)
    return Weight(unknown=1)


def _share(size: int, part: Part) -> int:
    """Of a wheel's bytes, those in one of its parts, as if each part but the last one that is needed were full."""
    return min(part.max_bytes, max(0, size - (part.number - 1) * part.max_bytes))


def covering(names: Iterable[str], family: Sequence[str]) -> tuple[str, ...]:
    """Ids and globs that name exactly these rows of a family; `--target` takes them."""
    wanted, told, done = set(names), list[str](), set[str]()
    if len(wanted) > 1 and wanted == set(family):
        return ("*",)
    for name in (name for name in family if name in wanted):
        if name not in done:
            glob, rows = _widest(name, wanted, family)
            told.append(glob)
            done |= rows
    return tuple(told)


def _widest(name: str, wanted: set[str], family: Sequence[str]) -> tuple[str, set[str]]:
    """The shortest of `torch25-*`, `torch25-cu124*`, `torch25-cu124-a100*` that names only wanted rows; else the id."""
    parts = name.split("-")
    for prefix in (f"{parts[0]}-", *("-".join(parts[:count]) for count in range(2, len(parts) + 1))):
        rows = {other for other in family if other.startswith(prefix)}
        if len(rows) > 1 and rows <= wanted:
            return f"{prefix}*", rows
    return name, {name}


def grouped(names: Iterable[str], family: Sequence[str]) -> tuple[str, ...]:
    """Rows of a family for people: `*`, whole releases, accelerators with how many of their rows are meant, ids."""
    wanted = set(names)
    if len(wanted) > 1 and wanted == set(family):
        return ("*",)
    told: list[str] = []
    for release, rows in _by_parts(family, 1).items():
        if len(rows) > 1 and wanted.issuperset(rows):
            told.append(f"{release}-*")
        else:
            told += [text for glob, some in _by_parts(rows, 2).items() if (text := _some(glob, some, wanted))]
    return tuple(told)


def _by_parts(names: Iterable[str], count: int) -> Mapping[str, list[str]]:
    """Ids by their first parts."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        groups["-".join(name.split("-")[:count])].append(name)
    return groups


def _some(prefix: str, rows: Sequence[str], wanted: set[str]) -> str:
    """Those of the rows with a prefix that are wanted; empty if none is."""
    own = [name for name in rows if name in wanted]
    if len(own) > 1:
        return f"{prefix}*" if len(own) == len(rows) else f"{prefix}* ({len(own)} of {len(rows)})"
    return "".join(own)


def plan_json(found: Family, row: str) -> dict[str, Any]:
    """What `plan --json` prints of a row: its plan, and for each layer the size and the other rows that have it."""
    (planned,) = [plan for plan in found.plans if plan.target == row]
    document = to_json(planned)
    for entry, layer in zip(document["layers"], found.layers_of(row), strict=True):
        known = None if layer.weight.unknown else layer.weight.bytes
        entry |= {"size": known, "size_is": certainty(layer.weight)}
        entry |= {"shared_with": [name for name in layer.rows if name != row]}
    return document


def certainty(weight: Weight) -> str:
    """Whether a weight is `exact`, an `estimate`, or `unknown`, if only in part."""
    return "unknown" if weight.unknown else "estimate" if weight.estimated else "exact"


def to_json_of(found: Family) -> dict[str, Any]:
    """What `plan --sharing --json` prints."""
    rows = [
        {
            "target": plan.target,
            "layers": len(plan.layers),
            "total": found.total_of(plan.target).to_json(),
            "unique": found.own_of(plan.target).to_json(),
        }
        for plan in found.plans
    ]
    return {
        "rows": rows,
        "total": found.summed.to_json(),
        "unique": found.unique.to_json(),
        "unpacked": found.unpacked.to_json(),
        "ratio": round(found.ratio, 2),
        "left_out": [
            {"target": name, "reason": why.what, "remedy": why.remedy} for name, why in found.left_out.items()
        ],
    }
