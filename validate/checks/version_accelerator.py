"""torch was built for the row's CUDA or ROCm."""

from __future__ import annotations

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="torch.version.cuda and .hip",
    explanation="torch was compiled for another toolkit than the row says, so driver floors and kernels of the row do "
    "not hold. Check the index the lock was made from.",
    needs=("torch.import",),
    seconds=20,
)


def run(expect: Expect, context: Context) -> Result:
    """The row's toolkit is named, and the other one is absent."""
    found = {name: context.found["torch.import"][name] for name in ("cuda", "hip")}
    wanted = {
        "cuda": expect.toolkit if expect.kind == "cuda" else "",
        "hip": expect.toolkit if expect.kind == "rocm" else "",
    }
    for name, version in wanted.items():
        if not same(found[name] or "", version):
            return failed(f"torch.version.{name} is {found[name]}, the row says {version or 'none'}", **found)
    return passed(found["cuda"] or found["hip"] or "neither, as a CPU row says", **found)


def same(found: str, wanted: str) -> bool:
    """Equal, or equal up to the parts that the row leaves open (`6.2` and `6.2.41133-dd7f95766`)."""
    return found == wanted or bool(wanted and found.startswith(wanted + "."))
