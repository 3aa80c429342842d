"""The speed gate: a block of a transformer, eager against compiled, on the GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from validate.expect import Expect
from validate.model import GPU, Check, Context, Result
from validate.speed import compare

CHECK = Check(
    title="speed gate: compiled is faster than eager on the GPU",
    explanation="Compiled code ran and is not faster by the row's threshold. `environment` means that the host was too "
    "busy to say: run again, or on another host.",
    level=GPU,
    needs=("gpu.compile",),
    seconds=600,
)
DEFAULT = 1.05
"""Where the row states none: below this compiling does not pay."""
THRESHOLD = "speed.cuda.block"
BFLOAT16_SINCE = (8, 0)
"""torch claims bf16 on older GPUs too, but generated code needs this (pytorch#118122)."""


def applies(expect: Expect) -> bool:
    """Rows with a GPU that Triton compiles for; on an older one nothing is promised."""
    return expect.gpu_compiles


def run(expect: Expect, context: Context) -> Result:
    """Normalisation, an MLP, and pointwise chains: big enough to be bound by the GPU."""
    import torch

    torch.manual_seed(0)
    device = context.found["gpu.compile"].get("device")
    dtype = half(torch, expect)
    model = torch.nn.Sequential(
        torch.nn.LayerNorm(2048),
        torch.nn.Linear(2048, 8192),
        torch.nn.GELU(approximate="tanh"),
        torch.nn.Linear(8192, 2048),
    )
    model = model.to(device="cuda", dtype=dtype).eval()

    def block(x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.silu(model(x)) * torch.sigmoid(x)

    row = replace(expect, thresholds={THRESHOLD: DEFAULT, **expect.thresholds})
    result = compare(torch, "block", block, (torch.randn(16, 1024, 2048, device="cuda", dtype=dtype),), row)
    return replace(result, data={**result.data, "dtype": str(dtype), "gpu": device})


def half(torch: Any, expect: Expect) -> Any:
    """The half type that this GPU computes in natively."""
    modern = expect.kind == "rocm" or torch.cuda.get_device_capability() >= BFLOAT16_SINCE
    return torch.bfloat16 if modern else torch.float16
