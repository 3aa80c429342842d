"""torchvision's compiled operators work with this torch."""

from __future__ import annotations

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="torchvision: nms, by its compiled operator",
    explanation="torchvision's C++ library was built for another torch, or did not load: its Python parts import, its "
    "operators do not. Install the torchvision of the row.",
    needs=("torch.import", "version.trio"),
    seconds=180,
)


def applies(expect: Expect) -> bool:
    """Rows that ship torchvision."""
    return bool(expect.torchvision)


def run(_expect: Expect, _context: Context) -> Result:
    """Of two overlapping boxes the better stays; a distant one stays too."""
    import torch
    import torchvision

    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 11, 11], [50, 50, 60, 60]])
    kept = torchvision.ops.nms(boxes, torch.tensor([0.6, 0.9, 0.5]), 0.5).tolist()
    data = {"version": torchvision.__version__, "kept": kept}
    return passed(torchvision.__version__, **data) if kept == [1, 2] else failed(f"nms kept {kept}, not [1, 2]", **data)
