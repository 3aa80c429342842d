"""SimpleCNN, eager against compiled, on the CPU."""

from __future__ import annotations

from validate.expect import Expect
from validate.model import Check, Context, Result
from validate.speed import compare

CHECK = Check(
    title="smoke benchmark SimpleCNN, eager against compiled",
    explanation="Compiled code did not run, differs from eager, or is slower than the row's threshold. The data holds "
    "medians, spread and the compile time apart.",
    needs=("compile.generated",),
    seconds=300,
)
BATCH = 64
FEATURES = 64 * 6 * 6
"""32 x 32 becomes 30, 15, 13, 6 through two convolutions of 3 and two pools of 2."""


def run(expect: Expect, _context: Context) -> Result:
    """Two convolutions, two pools, one linear layer to 10 classes; inference."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(FEATURES, 10),
    ).eval()
    return compare(torch, "simplecnn", model, (torch.randn(BATCH, 3, 32, 32),), expect)
