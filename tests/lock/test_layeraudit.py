"""Lines of layers.lock that no row plans any more, and rows that are locked in part, are told with what mends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchkiln.errors import StaleLockError
from torchkiln.lock import layeraudit
from torchkiln.oci import digest
from torchkiln.oci.image import LAYER_TYPE, Descriptor, Layer

if TYPE_CHECKING:
    from collections.abc import Iterable

BLOB = digest.of_bytes(b"")
ONE = frozenset({"base-1", "wheel-shared", "wheel-1", "bytecode-1"})
TWIN = ONE
OTHER = frozenset({"base-1", "wheel-shared", "wheel-2", "bytecode-2"})
"""Shares lines with ONE, and was never locked."""
PLANNED = {"one": ONE, "one-a100": TWIN, "other": OTHER}


def lines(keys: Iterable[str]) -> dict[str, Layer]:
    """Locked layers of these keys."""
    blob = Descriptor(media_type=LAYER_TYPE, digest=BLOB, size=1)
    return {key: Layer(descriptor=blob, diff_id=BLOB, unpacked_size=1, title=f"title of {key}") for key in keys}


def test_rows_that_are_locked_whole_explain_what_others_share() -> None:
    """Nothing is wrong where a row that nobody locked has lines of one that somebody did."""
    found = layeraudit.audit(lines(ONE), PLANNED)
    assert found == layeraudit.Findings(whole=("one", "one-a100"))
    layeraudit.refuse(found)
    layeraudit.refuse(layeraudit.audit({}, PLANNED))


def test_a_line_that_no_row_plans_is_stale() -> None:
    """With its name, and the command that deletes it; kinds that were never locked are none of its business."""
    found = layeraudit.audit(lines({*ONE, "base-0", "wheel-1.zstd-3-1", "suite-0"}), PLANNED)
    assert found.stale == (("base-0", "title of base-0"), ("wheel-1.zstd-3-1", "title of wheel-1.zstd-3-1"))
    with pytest.raises(StaleLockError, match="title of base-0") as raised:
        layeraudit.refuse(found)
    assert raised.value.where == "images/locks/layers.lock"
    assert raised.value.remedy.startswith("./inv lock --layers --target one,")
    layeraudit.refuse(found, ["one"])  # of a row that was named, all is there


@pytest.mark.parametrize("missing", sorted(ONE))
def test_a_row_that_lost_any_line_is_locked_in_part(missing: str) -> None:
    """Whichever it is, one it shares with others too; rows of the same layers are told once."""
    found = layeraudit.audit(lines(ONE - {missing}), PLANNED)
    kind = missing.partition("-")[0]
    (part,) = found.parts
    assert (part.row, part.alike) == ("one", ("one", "one-a100"))
    assert (part.locked, part.planned, part.missing) == (3, 4, kind)
    for chosen in (None, ["one"], ["one-a100"]):
        with pytest.raises(StaleLockError, match=f"one: 3 of 4 layers are locked; not its {kind}") as raised:
            layeraudit.refuse(found, chosen)
        assert raised.value.remedy == "./inv lock --layers --target one"
    layeraudit.refuse(found, ["other"])


def test_a_new_format_is_told_with_all_that_it_takes() -> None:
    """The old lines, of which few are listed, and each row that lacks the new ones."""
    planned = {"one": ONE, "two": OTHER}
    now = {row: frozenset({*(keys - {"base-1"}), "base-new"}) for row, keys in planned.items()}
    found = layeraudit.audit(lines({*ONE, *OTHER, *(f"wheel-old{number}" for number in range(9))}), now)
    assert [part.row for part in found.parts] == ["one", "two"]
    with pytest.raises(StaleLockError, match="5 more that no row plans") as raised:
        layeraudit.refuse(found)
    assert raised.value.remedy.startswith("./inv lock --layers --target one --target two, ")
