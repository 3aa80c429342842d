"""Rows of the matrix as GitHub Actions takes them: `strategy.matrix: ${{ fromJSON(…) }}`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torchkiln.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchkiln.report.rows import Row

LIMIT = 256
"""Jobs that one matrix may start, by GitHub's documentation of jobs.<job_id>.strategy.matrix."""


def matrix(rows: Sequence[Row]) -> str:
    """One line with a job for each row that may be built; UsageError for none, or more than GitHub starts."""
    legal = [row for row in rows if not row.refused]
    if not legal:
        raise UsageError("no row is left for a job", remedy="./inv matrix says what is wrong with each")
    if len(legal) > LIMIT:
        raise UsageError(
            f"{len(legal)} rows, and GitHub starts at most {LIMIT} jobs of a matrix",
            remedy="--target ID or --target 'GLOB', one matrix for each part",
        )
    return json.dumps({"include": [_job(row) for row in legal]}, separators=(",", ":"), allow_nan=False)


def _job(row: Row) -> dict[str, str | bool]:
    """What a job may want to know of its row, as plain values."""
    target = row.target
    return {
        "target": target.id,
        "release": target.release.id,
        "torch": target.release.torch,
        "python": target.base.python,
        "accelerator": target.accelerator.id,
        "gpu": target.gpu.id,
        "flavour": target.flavour.id,
        "base": target.base.id,
        "arch": target.arch,
        "locked": row.lock == "locked",
    }
