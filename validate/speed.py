"""Measure eager against compiled: interleaved, warmed up, judged by medians and their spread."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from validate.expect import Expect
from validate.model import ENVIRONMENT, FAIL, PASS, Result, failed, passed
from validate.proof import equal, prove

WARM_UPS = 10
REPEATS = 40
SECONDS = 25.0
"""Measuring stops after this long, but never below 30 repeats."""
LEAST_REPEATS = 30
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Series:
    """Seconds of each call, in pairs taken one after the other."""

    eager: tuple[float, ...]
    compiled: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """How many times faster compiled was, pair by pair; below 1 where it was slower."""
        return tuple(eager / compiled for eager, compiled in zip(self.eager, self.compiled))


def interleaved(
    eager: Callable[[], Any], compiled: Callable[[], Any], wait: Callable[[], None] = lambda: None
) -> Series:
    """Time both in turn, so that a busy moment of the host hits both; `wait` synchronises a device."""
    for _ in range(WARM_UPS):
        eager()
        compiled()
    taken: list[tuple[float, float]] = []
    began = time.perf_counter()
    while len(taken) < REPEATS and (len(taken) < LEAST_REPEATS or time.perf_counter() - began < SECONDS):
        taken.append((_timed(eager, wait), _timed(compiled, wait)))
    return Series(tuple(pair[0] for pair in taken), tuple(pair[1] for pair in taken))


def _timed(function: Callable[[], Any], wait: Callable[[], None]) -> float:
    wait()
    began = time.perf_counter()
    function()
    wait()
    return time.perf_counter() - began


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median and the 10th and 90th percentile, in milliseconds."""
    cuts = statistics.quantiles(seconds, n=10, method="inclusive")
    figures = {"median": statistics.median(seconds), "p10": cuts[0], "p90": cuts[-1]}
    return {name: round(value * 1000, 4) for name, value in figures.items()}


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Bounds of the median ratio at 99 % confidence, by order statistics: no assumption about the noise's shape."""
    ordered, count = sorted(ratios), len(ratios)
    rank, below = 0, 0.0
    while rank < count // 2:
        below += math.comb(count, rank) / 2**count
        if below > (1 - CONFIDENCE) / 2:
            break
        rank += 1
    rank = max(rank - 1, 0)
    return ordered[rank], ordered[count - 1 - rank]


def decide(ratios: Sequence[float], wanted: float) -> str:
    """Pass or fail where the interval is clear of the threshold; else environment: too noisy to say, run again."""
    low, high = interval(ratios)
    if low >= wanted:
        return PASS
    return FAIL if high < wanted else ENVIRONMENT


def compare(torch: Any, name: str, function: Callable[..., Any], inputs: tuple[Any, ...], expect: Expect) -> Result:
    """Prove, compare numbers, measure, and hold the ratio against the row's threshold if it has one."""
    device = inputs[0].device.type
    label = "CPU" if device == "cpu" else torch.cuda.get_device_name()
    with torch.no_grad():
        wanted = function(*inputs)
        proof = prove(function, inputs)
        data: dict[str, Any] = {"device": label, "proof": proof.data}
        if proof.problems:
            return failed(f"not a comparison: {'; '.join(proof.problems)}", **data)
        if not equal(torch, proof.output, wanted):
            return failed("compiled results differ from eager", **data)
        wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        series = interleaved(lambda: function(*inputs), lambda: proof.compiled(*inputs), wait)
    if proof.data["graphs"] != graphs():
        return failed("it was compiled again while being timed", **data)
    return judged(series, label, expect.thresholds.get(f"speed.{device}.{name}"), data)


def graphs() -> int:
    """Graphs compiled so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def judged(series: Series, label: str, threshold: float | None, data: Mapping[str, Any]) -> Result:
    """Figures and verdict; without a threshold a measured figure is a pass that says so."""
    low, high = interval(series.ratios)
    ratio = statistics.median(series.ratios)
    figures = {
        **data,
        "ratio": round(ratio, 3),
        "ratio_interval": [round(low, 3), round(high, 3)],
        "eager_ms": spread(series.eager),
        "compiled_ms": spread(series.compiled),
        "repeats": len(series.eager),
        "threshold": threshold,
    }
    seconds = data.get("proof", {}).get("compile_seconds")
    said = f"{label}: {ratio:.2f}x ({low:.2f} to {high:.2f}), compiling {seconds} s apart"
    if threshold is None:
        return passed(f"{said}; the row sets no threshold", **figures)
    status = decide(series.ratios, threshold)
    against = {PASS: "reaches", FAIL: "is below", ENVIRONMENT: "is too noisy to be held against"}[status]
    return Result(status, f"{said}; {against} {threshold:g}x", figures)
