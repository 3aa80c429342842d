"""torchaudio resamples as it should."""

from __future__ import annotations

import math

from validate.expect import Expect
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="torchaudio: resample",
    explanation="torchaudio does not import or computes nonsense with this torch. Install the torchaudio of the row.",
    needs=("torch.import", "version.trio"),
    seconds=180,
)
TOLERANCE = 0.02


def applies(expect: Expect) -> bool:
    """Rows that ship torchaudio."""
    return bool(expect.torchaudio)


def run(_expect: Expect, _context: Context) -> Result:
    """A 440 Hz tone at 16 kHz becomes the same tone at 8 kHz."""
    import torch
    import torchaudio

    def tone(rate: int) -> torch.Tensor:
        return torch.sin(2 * math.pi * 440 * torch.arange(rate) / rate)

    resampled = torchaudio.functional.resample(tone(16000), 16000, 8000)
    data = {"version": torchaudio.__version__, "samples": len(resampled)}
    if len(resampled) != 8000:  # noqa: PLR2004  one second at the new rate
        return failed(f"{len(resampled)} samples instead of 8000", **data)
    error = (resampled - tone(8000))[100:-100].abs().max().item()  # the ends lack neighbours
    data["error"] = error
    return passed(torchaudio.__version__, **data) if error < TOLERANCE else failed(f"error {error:.3f}", **data)
