"""The compiler builds every vector extension that Inductor is told it builds."""

from __future__ import annotations

import os
import sys
from typing import Any

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="the compiler builds AVX2 and AVX512 for Inductor",
    explanation="Inductor is told that the image's compiler can do this (torchkiln_startup.py), so that no container "
    "has to try, and it cannot: compiled functions fail on CPUs with that extension. Was the compiler or a header of "
    "torch replaced? TORCHINDUCTOR_VEC_ISA_OK=0 goes without. Where it is not told, the first call is slow.",
    needs=("torch.import", "toolchain.extension"),
    seconds=120,
)
CLASSES = ("VecAVX2", "VecAVX512")


def applies(expect: Expect) -> bool:
    """Other machines have other extensions, and Inductor is told nothing of them."""
    return expect.arch == "x86_64"


def run(_expect: Expect, _context: Context) -> Result:
    """Inductor's own trial, which builds and loads a file and runs nothing of it: the CPU needs neither extension."""
    from torch._inductor import config, cpu_vec_isa

    told = config.cpp.vec_isa_ok
    data: dict[str, Any] = {"told": told, "tried": {name: _builds(cpu_vec_isa, name) for name in CLASSES}}
    broken = [name for name, builds in data["tried"].items() if not builds]
    startup = sys.modules.get("torchkiln_startup")
    if broken:
        return failed(f"the compiler does not build {', '.join(broken)}", **data)
    if startup is not None and startup.tells(os.environ) and told is not True:
        return failed("Inductor is not told that the compiler builds them", **data)
    return passed(f"Inductor {'is told so' if told else 'tries it by itself'}", **data)


def _builds(isa: Any, name: str) -> bool:
    """Without the answer that the module remembers, and without what it was told."""
    return bool(getattr(isa, name)().check_build(isa.VecISA._avx_code))
