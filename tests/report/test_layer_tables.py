"""Plans as people read them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.test_plan import TARGET
from tests.test_sharing import A100, NEWER, key, planned
from torchkiln import sharing
from torchkiln.errors import LockError, MatrixError
from torchkiln.report import layers
from torchkiln.sharing import Weight


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        (Weight(bytes=3_180_000_000), "3.18 GB"),
        (Weight(bytes=909_000_000, estimated=1), "~909.0 MB"),
        (Weight(bytes=3648), "3.6 kB"),
        (Weight(bytes=12), "12 B"),
        (Weight(unknown=3), "?"),
        (Weight(bytes=5_000, estimated=1, unknown=2), "~5.0 kB + ?"),
        (Weight(), "0 B"),
    ],
)
def test_sizes_say_what_they_are_worth(weight: Weight, said: str) -> None:
    """Exact, estimated, or without what is not known."""
    assert layers.size(weight) == said


def lines(table: object) -> list[str]:
    """As a pipe gets it."""
    out = io.StringIO()
    Console(file=out, width=200).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_plan_tells_sizes_and_who_shares() -> None:
    """Layers lowest first; the row itself is not among those it shares with."""
    found = sharing.family(planned(), {key("base bookworm"): 89_000_000})
    _, base, _, torch, *_, suite = lines(layers.plan(found, A100.id))
    short = key("torch 2.5.1+cu124")[: len("wheel-") + 12]
    assert base.split() == [
        "1",
        "base",
        "bookworm",
        "89.0",
        "MB",
        "all",
        "2",
        "other",
        "rows",
        key("base bookworm")[:17],
    ]
    assert torch.split() == ["3", "torch", "2.5.1+cu124", "~99", "B", "1", "row:", TARGET.id, short]
    assert suite.split()[:-1] == ["10", "validation", "suite", "?", "-"]
    assert layers.said(found, A100.id).startswith(
        "torch25-cu124-a100: 10 layers, ~89.0 MB and 5 layers of unknown size;"
        " in none of the 2 other rows that can be planned: 1 layer of unknown size"
    )


def test_a_single_row_saves_nothing() -> None:
    """It is one row, and nothing is counted once."""
    told = layers.family_said(sharing.family(planned(), {}).only([TARGET.id]))
    assert told.startswith("1 row: ~159 B and 6 layers of unknown size in all. ~ is")


def test_the_family_tells_what_sharing_saves_and_who_is_left_out() -> None:
    """Rows that can't be planned are named with what they lack."""
    wrong = {"torch25-cpu": LockError("no lock"), "torch26-cpu": LockError("none"), "torch2-x": MatrixError("no")}
    found = sharing.family(planned(), dict.fromkeys((key("base bookworm"),), 1000), wrong)
    assert [line.split()[0] for line in lines(layers.family(found))] == ["target", TARGET.id, A100.id, NEWER.id]
    told, *left = layers.family_said(found).splitlines()
    assert told.startswith(
        "3 rows: ~3.4 kB and 15 layers of unknown size in all, "
        "~1.2 kB and 9 layers of unknown size with each layer counted once (2.8 times less); "
        "an engine that unpacks all rows fetches ~1.3 kB and 11 layers of unknown size."
    )
    assert left == [
        "left out, without a lock that fits (./inv lock): torch25-cpu, torch26-cpu",
        "left out, refused by lint (./inv matrix): torch2-x",
    ]
