"""A compiled function provably ran generated code."""

from __future__ import annotations

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed
from validate.proof import equal, prove

CHECK = Check(
    title="a compiled CPU function runs generated code",
    explanation="torch.compile fell back to eager, or generated nothing. Look for TORCHDYNAMO_SUPPRESS_ERRORS and "
    "TORCHDYNAMO_DISABLE in the environment; the data of this check counts graphs, breaks and kernels.",
    needs=("torch.import", "toolchain.extension"),
    seconds=300,
)


def run(_expect: Expect, _context: Context) -> Result:
    """One graph, no break, at least one kernel, nothing suppressed, numbers equal to eager."""
    import torch

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x * y + torch.sin(x)).sum(dim=-1)

    torch.manual_seed(0)
    inputs = (torch.randn(64, 257), torch.randn(64, 257))
    proof = prove(function, inputs)
    if proof.problems:
        return failed("; ".join(proof.problems), device="CPU", **proof.data)
    data = {"device": "CPU", "vector_isa": _vector_isa(), **proof.data}
    if not equal(torch, proof.output, function(*inputs)):
        return failed("compiled results differ from eager", **data)
    return passed(f"CPU: {data['generated_kernels']} kernel, compiled in {data['compile_seconds']} s", **data)


def _vector_isa() -> str:
    """What Inductor vectorises for; private, so only reported."""
    try:
        from torch._inductor.cpu_vec_isa import pick_vec_isa
    except ImportError:
        return "unknown"
    return str(pick_vec_isa())
