"""Medians and verdicts of benchmarks."""

from __future__ import annotations

import json

from bench.figures import OURS, Measured, Result, Verdict, best, from_json, most, share, times


def measured(name: str, *seconds: float) -> Measured:
    """A contestant with these rounds."""
    return Measured(name=name, what="somehow", rounds=tuple({"seconds": value} for value in seconds))


FOUND = (measured(OURS, 2.0, 1.0, 30.0), measured("a", 40.0, 20.0, 10.0), measured("b", 50.0), measured("none"))


def test_the_middle_round_counts() -> None:
    """One round that was disturbed changes nothing; a figure that nobody measured is no zero."""
    assert FOUND[0].median("seconds") == 2.0
    assert measured("even", 1.0, 2.0).median("seconds") == 1.5
    assert FOUND[0].median("bytes") is None
    assert FOUND[3].median("seconds") is None


def test_ours_is_compared_with_the_best_of_theirs() -> None:
    """Not with the slowest, nor with one that is not named."""
    assert best(FOUND, "seconds", "a", "b", "none") == 20.0
    (found,) = times("faster", FOUND, theirs=["b", "a"], limit=12)
    assert (found.found, found.reached) == (10.0, False)
    (found,) = times("faster", FOUND, theirs=["b"], limit=12)
    assert (found.found, found.reached) == (25.0, True)
    (found,) = share("less", FOUND, theirs=["a"], limit=0.1, figure="seconds")
    assert (found.found, found.reached) == (0.1, True)
    (found,) = most("little", FOUND, limit=1.9, figure="seconds", unit="s")
    assert not found.reached


def test_what_was_not_measured_is_not_judged() -> None:
    """A missing side gives no verdict, neither good nor bad."""
    assert times("faster", FOUND, theirs=["none"], limit=1) == ()
    assert times("faster", FOUND[1:], theirs=["a"], limit=1) == ()
    assert share("less", FOUND, theirs=["a"], limit=1) == ()
    assert most("little", FOUND[1:], limit=1, figure="seconds", unit="s") == ()


def test_a_result_survives_its_file() -> None:
    """What is written is read back as it was, raw rounds and verdicts too."""
    result = Result(
        bench="push",
        rows=("torch25-cu124",),
        commit="0123456789ab",
        began="2026-01-02T03:04:05+00:00",
        took=61.5,
        machine={"cpu": "toy", "cores": 2, "memory_gb": 24.0, "kernel": "6.1"},
        loads=(0.1, 0.2),
        contestants=FOUND,
        verdicts=(Verdict(said="fast", found=3, limit=2, at_most=False, unit="times"),),
    )
    assert from_json(json.loads(json.dumps(result.to_json()))) == result
