"""The page and the plots of results."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from bench import catalogue, contest, pages
from bench.charts import Bar, svg
from bench.figures import OURS, Measured, Result, Verdict
from torchkiln.errors import UsageError

PUSH = catalogue.BENCHES["push"]


def result(name: str = "push") -> Result:
    """Two contestants, one of them without a build of its own."""
    ours = Measured(name=OURS, what="ours", rounds=({"seconds": 9.5, "bytes": 3e9}, {"seconds": 10.5, "bytes": 3e9}))
    peer = Measured(name="docker plain", what="theirs", rounds=({"seconds": 244.0, "build": 70.0, "bytes": 3.1e9},))
    return Result(
        bench=name,
        rows=("torch25-cu124",),
        commit="0123456789ab",
        began="2026-01-02T03:04:05+00:00",
        took=61.5,
        machine={"cpu": "toy", "cores": 2, "memory_gb": 24.0, "kernel": "6.1", "docker": "20.10", "buildah": ""},
        loads=(0.1, 7.5),
        contestants=(ours, peer),
        verdicts=(Verdict(said="faster", found=24.4, limit=12, at_most=False, unit="times"),),
    )


def test_a_table_has_medians_and_dashes() -> None:
    """Bytes are shown in the column's unit; what a contestant has no figure of is a dash."""
    text = pages.section(result(), PUSH)
    assert "| torchkiln | 10.0 | - | - | 3,000 | ours |" in text
    assert "| docker plain | 244 | 70.0 | - | 3,100 | theirs |" in text


def test_a_reader_learns_where_it_ran_and_under_which_load() -> None:
    """Figures without their machine, versions, commit and load prove nothing."""
    text = pages.section(result(), PUSH)
    for word in ("toy, 2 cores", "docker 20.10", "0123456789ab", "2026-01-02", "0.1, 7.5", "2 rounds"):
        assert word in text
    assert "buildah" not in text.splitlines()[-1]


def test_what_was_missed_is_said() -> None:
    """A verdict names what was wanted, whether it was reached or not."""
    one = Verdict(said="faster", found=11.5, limit=12, at_most=False, unit="times")
    assert pages.verdict(one) == "- **Missed**: faster: 11.5 times, at least 12 wanted."
    assert pages.verdict(replace(one, found=12.0)).startswith("- Reached")


def test_the_page_keeps_the_order_of_the_benches() -> None:
    """However files are called; results of benches that are gone are left out, and an empty page says so."""
    text = pages.page([result("memory"), result("gone"), result("push")], catalogue.BENCHES)
    assert text.index("## Push") < text.index("## Memory")
    assert text.count("\n## ") == 2
    assert "Nothing was measured" in pages.page([], catalogue.BENCHES)


def test_bars_are_as_long_as_their_values() -> None:
    """The drawing is XML; lengths are in proportion; names are text, whatever they hold."""
    bars = tuple(
        Bar(name=name, value=value, rounds=(value, value / 2), label="x", ours=False)
        for name, value in (("<a>", 10.0), ("b", 5.0))
    )
    drawing = ET.fromstring(svg("a & b", bars))  # noqa: S314  our own
    space = "{http://www.w3.org/2000/svg}"
    first, second = (float(one.attrib["width"]) for one in drawing.iter(f"{space}rect"))
    assert first == pytest.approx(2 * second)
    assert next(one.text for one in drawing.iter(f"{space}text")) == "<a>"
    assert len(list(drawing.iter(f"{space}circle"))) == 4


def test_nobody_is_always_first() -> None:
    """Each round begins with another contestant, and has all of them."""
    names = [contest.Contestant(name=name, what="", play=dict) for name in "abc"]
    orders = [[one.name for one in contest.turned(names, number)] for number in range(4)]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]


def test_rows_and_rounds_are_the_bench_s_unless_stated() -> None:
    """Benches of a family have rows of their own; what the command line says goes first."""
    family = catalogue.BENCHES["family"]
    assert len(catalogue.rows(family, ())) == 6
    assert catalogue.rows(family, ["torch213-cpu"]) == ("torch213-cpu",)
    assert catalogue.rows(PUSH, ()) == (catalogue.ROW,)
    assert len(catalogue.rows(family, ["torch213-cpu"], among=2)) == 6
    assert catalogue.rows(PUSH, ["torch213-cpu"], among=2) == ("torch213-cpu",)
    assert (catalogue.rounds(family, 0), catalogue.rounds(PUSH, 0), catalogue.rounds(family, 5)) == (1, 3, 5)


def test_a_bench_that_does_not_exist_is_refused() -> None:
    """The message lists those that do."""
    with pytest.raises(UsageError, match="no benchmark is called pusj") as refused:
        catalogue.chosen("pusj")
    assert "push" in refused.value.remedy
    assert len(catalogue.chosen("all")) == len(catalogue.BENCHES)
