"""Arrays go from torch to numpy and back, sharing memory."""

from __future__ import annotations

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="numpy round trip",
    explanation="numpy is missing, or its major version is not the one torch was built against; tensor.numpy() and "
    "from_numpy() then raise. Use the numpy bound of the release.",
    needs=("torch.import",),
    seconds=120,
)


def applies(expect: Expect) -> bool:
    """Rows that ship numpy."""
    return "numpy" in expect.pins


def run(_expect: Expect, _context: Context) -> Result:
    """Values, dtype and memory, both ways."""
    import numpy as np
    import torch

    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    array = tensor.numpy()
    array[0, 0] = 41.0
    back = torch.from_numpy(np.arange(4, dtype=np.int64))
    if tensor[0, 0].item() != 41.0 or array.dtype != np.float32:  # noqa: PLR2004  the value written above
        return failed("numpy() returned a copy or another type", numpy=np.__version__)
    if back.tolist() != [0, 1, 2, 3] or back.dtype != torch.int64:
        return failed("from_numpy() returned other values", numpy=np.__version__)
    return passed(f"numpy {np.__version__}", numpy=np.__version__)
