from __future__ import annotations

import random

import pytest

from validate.model import ENVIRONMENT, FAIL, PASS
from validate.speed import Series, decide, interleaved, interval, judged, spread


def series(ratio: float, noise: float, seed: int, count: int = 40) -> Series:
    """Synthetic times: eager is `ratio` times slower, each call off by up to `noise`."""
    dice = random.Random(seed)  # noqa: S311  not for secrets

    def times(mean: float) -> tuple[float, ...]:
        return tuple(mean * dice.uniform(1 - noise, 1 + noise) for _ in range(count))

    return Series(times(ratio), times(1.0))


@pytest.mark.parametrize(("ratio", "wanted"), [(1.0, FAIL), (1.3, PASS)])
def test_noise_does_not_decide(ratio: float, wanted: str) -> None:
    """Twenty series at 1.00x and at 1.30x, each call up to 10 % off, get one verdict against 1.15x."""
    assert {decide(series(ratio, 0.10, seed).ratios, 1.15) for seed in range(20)} == {wanted}


def test_too_close_to_call_is_not_decided() -> None:
    """At the threshold itself the answer is `environment`: run again."""
    found = [decide(series(1.15, 0.10, seed).ratios, 1.15) for seed in range(20)]
    assert found.count(ENVIRONMENT) >= 19


def test_slower_is_shown_as_slower() -> None:
    """A slowdown is not clipped to 1.0."""
    result = judged(series(0.5, 0.01, 1), "CPU", None, {})
    assert result.data["ratio"] == pytest.approx(0.5, rel=0.05)
    assert "0.50x" in result.reason


def test_without_threshold_the_figure_is_only_reported() -> None:
    """A pass without a threshold says that there was none, and names the device."""
    result = judged(series(1.0, 0.001, 1), "CPU", None, {"proof": {"compile_seconds": 7.5}})
    assert result.status == PASS
    assert result.reason.startswith("CPU: 1.00x")
    assert result.reason.endswith("compiling 7.5 s apart; the row sets no threshold")


def test_interval_holds_the_median() -> None:
    """Bounds lie around the median and are ratios that were measured."""
    ratios = series(1.2, 0.1, 3).ratios
    low, high = interval(ratios)
    assert {low, high} <= set(ratios)
    assert low < sorted(ratios)[20] < high


def test_calls_alternate() -> None:
    """Eager and compiled are timed in turn, after as many untimed calls of each."""
    calls: list[str] = []
    found = interleaved(lambda: calls.append("e"), lambda: calls.append("c"))
    assert "".join(calls) == "ec" * (len(found.eager) + 10)
    assert len(found.eager) == len(found.compiled) >= 30


def test_spread_is_in_milliseconds() -> None:
    """Median and both percentiles."""
    assert spread([0.001, 0.002, 0.003]) == {"median": 2.0, "p10": 1.2, "p90": 2.8}
