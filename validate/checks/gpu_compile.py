"""A compiled function provably ran generated GPU code."""

from __future__ import annotations

import os

from validate.expect import Expect
from validate.model import GPU, Check, Context, Result, failed, passed
from validate.proof import equal, prove

CHECK = Check(
    title="a compiled GPU function runs generated code",
    explanation="Triton's kernel did not build, load or compute. The traceback names the tool; ptxas of another CUDA "
    "on PATH or in TRITON_PTXAS_PATH is a usual cause.",
    level=GPU,
    needs=("gpu.device", "gpu.arch", "toolchain.extension"),
    seconds=300,
)


def applies(expect: Expect) -> bool:
    """Rows with a GPU that Triton compiles for; on an older one nothing is promised."""
    return expect.gpu_compiles


def run(_expect: Expect, _context: Context) -> Result:
    """One graph, a kernel, results on the device and equal to eager."""
    import torch

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x * y + torch.sin(x)).sum(dim=-1)

    torch.manual_seed(0)
    inputs = (torch.randn(64, 257, device="cuda"), torch.randn(64, 257, device="cuda"))
    proof = prove(function, inputs)
    data = {
        "device": torch.cuda.get_device_name(),
        "ptxas": os.environ.get("TRITON_PTXAS_PATH", "triton's own"),
        **proof.data,
    }
    if proof.problems:
        return failed("; ".join(proof.problems), **data)
    if not proof.output.is_cuda or not equal(torch, proof.output, function(*inputs)):
        return failed("compiled results differ from eager", **data)
    return passed(f"{data['device']}: compiled in {data['compile_seconds']} s", **data)
