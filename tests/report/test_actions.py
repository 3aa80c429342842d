"""The matrix as GitHub Actions takes it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.report.test_rows import A100, CPU, DEVEL, PLAIN
from torchkiln.errors import UsageError
from torchkiln.matrix.target import Gpu
from torchkiln.report import actions
from torchkiln.report.rows import Row


def test_a_job_for_each_row_that_may_be_built() -> None:
    """One line for fromJSON(…), in the matrix's order; a row that lint refuses gets no job."""
    text = actions.matrix([PLAIN, DEVEL, CPU])
    assert text == actions.matrix([PLAIN, DEVEL, CPU])
    assert "\n" not in text
    assert " " not in text
    first, second = json.loads(text)["include"]
    assert first == {
        "target": "torch25-cu124",
        "release": "torch25",
        "torch": "2.5.1",
        "python": "3.11",
        "accelerator": "cu124",
        "gpu": "generic",
        "flavour": "runtime",
        "base": "bookworm",
        "arch": "x86_64",
        "locked": True,
    }
    assert (second["target"], second["locked"]) == (DEVEL.target.id, False)


def test_no_job_is_an_error() -> None:
    """GitHub refuses an empty matrix with a message that names no cause; a workflow should stop here."""
    with pytest.raises(UsageError, match="no row is left"):
        actions.matrix([CPU])


def test_more_jobs_than_github_starts_are_an_error() -> None:
    """It would drop none, but refuse the whole run."""
    many = [Row(target=replace(A100.target, gpu=Gpu(id=f"gpu{n}"))) for n in range(actions.LIMIT + 1)]
    assert len(json.loads(actions.matrix(many[1:]))["include"]) == 256
    with pytest.raises(UsageError, match="257 rows") as raised:
        actions.matrix(many)
    assert "--target" in raised.value.remedy
