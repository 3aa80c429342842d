"""torch can be imported; what it says about itself is kept for the checks that follow."""

from __future__ import annotations

import time

from validate.expect import Expect
from validate.model import Check, Context, Result, passed

CHECK = Check(
    title="torch can be imported",
    explanation="Nothing else about torch can be judged. The traceback names the missing module or library; compare "
    "the installed set with the lock.",
    seconds=180,
)


def run(_expect: Expect, _context: Context) -> Result:
    """Import, and ask for versions and build facts."""
    began = time.perf_counter()
    import torch

    took = time.perf_counter() - began
    architectures = getattr(torch._C, "_cuda_getArchFlags", lambda: None)() or ""
    return passed(
        torch.__version__,
        version=torch.__version__,
        cuda=torch.version.cuda,
        hip=getattr(torch.version, "hip", None),
        path=torch.__file__,
        import_seconds=round(took, 2),
        archs=architectures.split(),
        cxx11_abi=torch.compiled_with_cxx11_abi(),
        threads=torch.get_num_threads(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
    )
