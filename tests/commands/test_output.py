"""What becomes of a result that JSON or the terminal cannot hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.commands.printing import FAMILY
from tests.kiln import ROOT
from torchkiln.commands import output
from torchkiln.errors import MatrixError, UnknownTargetError


def test_json_holds_only_finite_numbers() -> None:
    """No reader of JSON knows NaN: it is an error, not a document."""
    assert json.loads(output.document({"figure": 1.5})) == {"figure": 1.5}
    for figure in (float("nan"), float("inf")):
        with pytest.raises(MatrixError, match="no finite number"):
            output.document({"figure": figure})


@pytest.mark.parametrize("options", [[], ["--json"], ["--explain", "torch28-cu124-rtx4090d"], ["--target", "nothing"]])
def test_an_encoding_without_our_signs_is_no_error(options: list[str]) -> None:
    """≥, arrows and ellipses become what the encoding has; JSON stays JSON."""
    command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "matrix", *options]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, cwd=ROOT, capture_output=True, check=False
    )
    told = (done.stdout + done.stderr).decode("ascii")
    assert "Traceback" not in told
    assert done.returncode in {0, MatrixError.exit_code, UnknownTargetError.exit_code}
    if "--json" in options:
        assert len(json.loads(done.stdout)) == len(FAMILY)
