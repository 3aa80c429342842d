"""torch holds code for this GPU's architecture."""

from __future__ import annotations

from collections.abc import Sequence

from validate.expect import Expect
from validate.model import GPU, Check, Context, Result, failed, host_fault, passed

CHECK = Check(
    title="torch holds code for this GPU",
    explanation="Kernels would fail with `no kernel image is available`. `environment` means that this host's GPU is "
    "not the row's: take the row that names its architecture, or a host that has the row's GPU.",
    level=GPU,
    needs=("gpu.device",),
    seconds=20,
)

GB = 10**9
USABLE = 0.95
"""Of the memory that a card is sold with, at least this much is the program's."""


def applies(expect: Expect) -> bool:
    """Rows with a GPU."""
    return expect.gpu_row


def run(expect: Expect, context: Context) -> Result:
    """Each visible device, and the one the row is for."""
    found = context.found["gpu.device"]
    archs = found["archs"]
    names = [device["gfx"] or "sm_{}{}".format(*device["capability"]) for device in found["devices"]]
    return judged(expect, archs, names, min(device["memory_bytes"] for device in found["devices"]))


def judged(expect: Expect, archs: Sequence[str], names: Sequence[str], memory: int) -> Result:
    """The image is at fault where a GPU that the row is for has no code, the host where it shows others; pure.

    `memory` is that of the smallest device, in bytes.
    """
    data = {"archs": list(archs), "devices": list(names), "memory_bytes": memory}
    unserved = sorted({name for name in names if not serves(archs, name)})
    owed = [name for name in unserved if promised(expect, name)]
    if owed:
        return failed(f"no code for {', '.join(owed)} among {', '.join(archs)}", **data)
    if expect.gpu_arch and expect.gpu_arch not in names:
        return host_fault(f"the row is for {expect.gpu_arch}, visible is {', '.join(sorted(set(names)))}", **data)
    if unserved:
        return host_fault(f"the row is not for {', '.join(unserved)}: torch has no code for it", **data)
    if memory < expect.gpu_memory_gb * GB * USABLE:
        return host_fault(f"the row is for {expect.gpu_memory_gb} GB, a device has {memory / GB:.1f}", **data)
    return passed(", ".join(sorted(set(names))), **data)


def promised(expect: Expect, device: str) -> bool:
    """Whether the row is for this GPU: the one that it names, else any that its wheels are said to serve."""
    if expect.gpu_arch:
        return device == expect.gpu_arch
    return not expect.archs or serves(expect.archs, device)


def serves(archs: Sequence[str], device: str) -> bool:
    """Same major and lower or equal minor runs, PTX of any lower or equal; a letter suffix, and any gfx, as named.

    CUDA programming guide, binary and PTX compatibility.
    """
    if device in archs:
        return True
    if not device.startswith("sm_"):
        return False
    wanted = int(device[3:])
    kinds = [arch.partition("_")[::2] for arch in archs]
    held = [(kind, int(number)) for kind, number in kinds if number.isdigit() and int(number) <= wanted]
    return any(kind == "compute" or number // 10 == wanted // 10 for kind, number in held)
