"""torch holds code for this GPU's architecture."""

from __future__ import annotations

from collections.abc import Sequence

from validate.expect import Expect
from validate.model import GPU, Check, Context, Result, failed, passed

CHECK = Check(
    title="torch holds code for this GPU",
    explanation="Kernels would fail with `no kernel image is available`. Take the row "
    "that names this GPU's architecture.",
    level=GPU,
    needs=("gpu.device",),
    seconds=20,
)


def applies(expect: Expect) -> bool:
    """Rows with a GPU."""
    return expect.gpu_row


def run(expect: Expect, context: Context) -> Result:
    """Each visible device, and the one the row is for."""
    found = context.found["gpu.device"]
    archs = found["archs"]
    names = [device["gfx"] or "sm_{}{}".format(*device["capability"]) for device in found["devices"]]
    unserved = sorted({name for name in names if not serves(archs, name)})
    if unserved:
        return failed(f"no code for {', '.join(unserved)} among {', '.join(archs)}", archs=archs, devices=names)
    if expect.gpu_arch and expect.gpu_arch not in names:
        return failed(f"the row is for {expect.gpu_arch}, visible is {', '.join(names)}", archs=archs, devices=names)
    return passed(", ".join(sorted(set(names))), archs=archs, devices=names)


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
