"""torch sees the GPU and computes on it."""

from __future__ import annotations

from validate.expect import Expect
from validate.model import GPU, Check, Context, Result, failed, passed

CHECK = Check(
    title="torch sees the GPU and multiplies on it",
    explanation="The driver works, torch does not use it: a CPU build, a library of another CUDA before torch's own "
    "(LD_LIBRARY_PATH), or hidden devices (CUDA_VISIBLE_DEVICES).",
    level=GPU,
    needs=("torch.import", "gpu.driver"),
    seconds=180,
)


def applies(expect: Expect) -> bool:
    """Rows with a GPU."""
    return expect.gpu_row


def run(_expect: Expect, _context: Context) -> Result:
    """Devices are listed; a product equals the CPU's."""
    import torch

    if not torch.cuda.is_available():
        return failed("torch.cuda.is_available() is False")
    devices = [_described(torch.cuda.get_device_properties(index)) for index in range(torch.cuda.device_count())]
    data = {"devices": devices, "archs": torch.cuda.get_arch_list()}
    torch.manual_seed(0)
    left, right = torch.randn(256, 256), torch.randn(256, 256)
    product = left.cuda() @ right.cuda()
    if not product.is_cuda or not torch.allclose(product.cpu(), left @ right, rtol=1e-2, atol=1e-2):
        return failed("a product on the GPU differs from the CPU's", **data)
    return passed(f"{len(devices)} x {devices[0]['name']}", **data)


def _described(properties: object) -> dict[str, object]:
    return {
        "name": getattr(properties, "name", ""),
        "memory_bytes": getattr(properties, "total_memory", 0),
        "capability": [getattr(properties, "major", 0), getattr(properties, "minor", 0)],
        "gfx": str(getattr(properties, "gcnArchName", "")).partition(":")[0],
    }
