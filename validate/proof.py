"""Prove that compiled code ran: graphs, generated kernels, and calls of what the compiler returned are counted.

Dynamo may fall back to eager without a word (suppress_errors, TORCHDYNAMO_DISABLE, graph breaks); numbers are then
right, and speed means nothing. So no check believes a compiled function that this module has not counted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable


@dataclass
class Proof:
    """What was counted; `problems` is empty if compiled code provably ran."""

    compiled: Callable[..., Any]
    output: Any
    problems: list[str]
    data: dict[str, Any] = field(default_factory=dict)


def prove(function: Callable[..., Any], inputs: tuple[Any, ...]) -> Proof:
    """Compile with Inductor as one graph, call twice, and count."""
    import torch
    from torch._dynamo.utils import counters
    from torch._inductor import metrics
    from torch._inductor.compile_fx import compile_fx

    calls = [0]

    def counting(graph: Any, examples: Any) -> Callable[..., Any]:
        inner = compile_fx(graph, examples)

        def counted(*arguments: Any) -> Any:
            calls[0] += 1
            return inner(*arguments)

        return counted

    torch._dynamo.reset()
    counters.clear()
    metrics.reset()
    compiled = torch.compile(function, backend=counting, fullgraph=True)
    began = time.perf_counter()
    compiled(*inputs)
    first = time.perf_counter() - began
    output = compiled(*inputs)
    data = {
        "graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": dict(counters["graph_break"]),
        "generated_kernels": metrics.generated_kernel_count,
        "compiled_calls": calls[0],
        "suppress_errors": bool(torch._dynamo.config.suppress_errors),
        "compile_seconds": round(first, 3),
        "inductor": {name: count for name, count in counters["inductor"].items() if isinstance(count, int)},
    }
    return Proof(compiled, output, problems(data), data)


def problems(data: Mapping[str, Any]) -> list[str]:
    """What speaks against compiled code having run; pure."""
    found = []
    if data["suppress_errors"]:
        found.append("suppress_errors is on: compile errors would fall back to eager unseen")
    if data["graphs"] != 1:
        found.append(f"{data['graphs']} graphs were compiled instead of 1")
    if data["graph_breaks"]:
        found.append(f"graph breaks: {', '.join(map(str, data['graph_breaks']))}"[:300])
    if not data["generated_kernels"]:
        found.append("no kernel was generated")
    if data["compiled_calls"] < 2:  # noqa: PLR2004  prove() calls twice
        found.append(f"compiled code ran {data['compiled_calls']} times in 2 calls")
    return found


def equal(torch: Any, found: Any, wanted: Any) -> bool:
    """Same device, type and numbers, within what another order of additions may change."""
    same_kind = found.device == wanted.device and found.dtype == wanted.dtype and found.shape == wanted.shape
    tolerance = 1e-4 if found.dtype == torch.float32 else 3e-2
    return same_kind and bool(torch.allclose(found, wanted, rtol=tolerance, atol=tolerance))
