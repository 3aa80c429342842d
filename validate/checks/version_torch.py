"""torch's version equals the lock, and its suffix the row."""

from __future__ import annotations

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="torch's version and suffix",
    explanation="Another torch is inside than the tag says, perhaps another variant from another index, or a later pip "
    "install replaced it. Build again from the lock.",
    needs=("torch.import",),
    seconds=20,
)


def run(expect: Expect, context: Context) -> Result:
    """Public version as in the row and the lock; local suffix as the accelerator."""
    version = str(context.found["torch.import"]["version"])
    public, _, suffix = version.partition("+")
    wanted = {"row": expect.torch, "lock": expect.pins.get("torch", "").partition("+")[0]}
    for source, value in wanted.items():
        if public != value:
            return failed(f"torch {version}, the {source} says {value or 'none'}", version=version)
    if suffix != expect.accelerator:
        return failed(f"torch {version} is built for {suffix or 'nothing stated'}, the row says {expect.accelerator}")
    return passed(version, version=version)
