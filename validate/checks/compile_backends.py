"""Each backend that the row claims compiles a small model and matches eager."""

from __future__ import annotations

from typing import Any

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed
from validate.proof import equal

CHECK = Check(
    title="claimed Dynamo backends compile and match eager",
    explanation="A backend that list_backends() names does not work; listing alone proves nothing. The reason names "
    "the backend and its first error.",
    needs=("torch.import", "toolchain.extension"),
    seconds=300,
)


def run(expect: Expect, _context: Context) -> Result:
    """Listed ones are recorded; claimed ones are tried."""
    import torch

    listed = torch._dynamo.list_backends(exclude_tags=())
    data: dict[str, Any] = {"device": "CPU", "default": torch._dynamo.list_backends(), "all": listed}
    problems = {}
    for backend in expect.backends:
        problem = _problem(torch, backend) if backend in listed else "is not listed"
        problems.update({backend: problem} if problem else {})
    data["tried"] = {backend: problems.get(backend, "matches eager") for backend in expect.backends}
    if problems:
        return failed("; ".join(f"{backend} {problem}" for backend, problem in problems.items()), **data)
    return passed(f"CPU: {', '.join(expect.backends)}", **data)


def _problem(torch: Any, backend: str) -> str:
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    example = torch.randn(5, 8)
    torch._dynamo.reset()
    counters.clear()
    try:
        with torch.no_grad():
            found = torch.compile(model, backend=backend, fullgraph=True)(example)
    except Exception as error:  # noqa: BLE001  whatever a backend raises is its answer
        return f"raised {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
    if not counters["stats"]["unique_graphs"]:
        return "compiled nothing"
    with torch.no_grad():
        return "" if equal(torch, found, model(example)) else "differs from eager"
