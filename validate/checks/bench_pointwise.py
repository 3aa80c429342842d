"""`x*x + sin(x)`, eager against compiled, on the CPU."""

from __future__ import annotations

from validate.expect import Expect
from validate.model import Check, Context, Result
from validate.speed import compare

CHECK = Check(
    title="smoke benchmark x*x + sin(x), eager against compiled",
    explanation="Compiled code did not run, differs from eager, or is slower than the row's threshold. The data holds "
    "medians, spread and the compile time apart.",
    needs=("compile.generated",),
    seconds=240,
)
ELEMENTS = 1 << 22
"""16 MB: beyond most caches, so that fusing saves a pass over memory."""


def run(expect: Expect, _context: Context) -> Result:
    """A chain that fuses into one kernel."""
    import torch

    def chain(x: torch.Tensor) -> torch.Tensor:
        return x * x + torch.sin(x)

    torch.manual_seed(0)
    return compare(torch, "pointwise", chain, (torch.randn(ELEMENTS),), expect)
