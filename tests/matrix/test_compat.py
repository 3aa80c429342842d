from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.matrix.rows import KNOWN, ROW, row
from torchkiln.errors import MatrixError
from torchkiln.matrix import compat, schema
from torchkiln.matrix.compat import lint
from torchkiln.matrix.target import Extra

MATRIX = schema.load(Path(__file__).parents[2] / "matrix.yaml")


def test_rows_of_this_repository_are_fine() -> None:
    """No row that can be built has an error or a warning."""
    found = {target.id: lint(target, KNOWN, MATRIX) for target in MATRIX.targets}
    wrong = {name: [one for one in findings if one.severity != "note"] for name, findings in found.items()}
    assert {name: findings for name, findings in wrong.items() if findings} == {}
    for target in MATRIX.targets:
        compat.refuse(target, KNOWN, MATRIX)


def test_a_refusal_says_rule_evidence_and_what_to_use_instead() -> None:
    """The walk-through's own row, torch 2.8 with CUDA 12.4 on a 4090D, is answered with one that works there."""
    with pytest.raises(MatrixError) as raised:
        compat.refuse(row("2.8.0", "cu124", gpu="rtx4090d", arch="sm_89", driver="550.90.07"), KNOWN)
    text = str(raised.value)
    assert "variant-exists: torch 2.8.0 has no cu124 build" in text
    assert "cu126, cu128, cu129" in text
    assert raised.value.remedy == "use torch28-cu126-rtx4090d"


def test_a_refusal_names_every_error() -> None:
    """Who mends the row sees all that is wrong with it, and a row in which all of it is right."""
    target = row("2.8.0", "cu124", arch="sm_120", driver="450.80.02", torchvision="0.16.0")
    with pytest.raises(MatrixError) as raised:
        compat.refuse(target, KNOWN)
    assert all(rule in str(raised.value) for rule in ("trio-pairing:", "variant-exists:", "driver:", "gpu-driver:"))


def test_only_errors_come_with_another_row() -> None:
    """A note or a warning needs no other row; each error of a row has the same one."""
    found = lint(row("2.8.0", "cu128", arch="sm_120", driver="550.90.07"), KNOWN)
    assert [(one.rule, one.row is not None) for one in found] == [("driver", False), ("gpu-driver", True)]


def test_json_is_plain_and_names_the_nearest_row_by_its_id() -> None:
    """Programs read the same fields as before, and beside them the nearest row's id."""
    target = replace(
        row("2.8.0", "cu124"), extra=Extra(id="mine", requirements=("einops",), file=Path("locks") / "mine.txt")
    )
    told = json.loads(json.dumps(compat.to_json(target, lint(target, KNOWN))))
    assert told["id"] == "torch28-cu124-with-mine"
    assert told["lock"] == target.lock_name
    assert told["extra"]["file"] == "locks/mine.txt"
    (finding,) = told["findings"]
    assert finding.keys() == {"rule", "severity", "message", "evidence", "nearest", "row"}
    assert (finding["nearest"], finding["row"]) == ("torch28-cu126-with-mine",) * 2
    assert json.loads(json.dumps(compat.to_json(ROW, lint(ROW, KNOWN))))["findings"] == []


def edited(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    """The small matrix with some text changed."""
    text = Path(__file__).with_name("small.yaml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "matrix.yaml"
    path.write_text(text)
    return path


def test_a_cuda_that_other_releases_have_is_refused_by_lint(tmp_path: Path) -> None:
    """CUDA 13.4 is built for torch 2.15 only: the row is read, and refused with what that torch is built for."""
    path = edited(
        tmp_path, ("cu124: {kind: cuda, version: '12.4'", "cu134: {kind: cuda, version: '13.4'"), ("[cu124]", "[cu134]")
    )
    family = schema.load(path, KNOWN)
    (finding,) = [one for one in lint(family.targets[0], KNOWN, family) if one.severity == "error"]
    assert finding.rule == "variant-exists"
    assert "torch 2.5.1 is built for cpu, cu118, cu121, cu124" in finding.evidence
    assert finding.nearest == "torch25-cu124"


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("'13.5'", "accelerators.cu135: no torch is built for 'cu135'; nearest: cu13"),
        ("13.5", "accelerators.cu135.version: 13.5 is a number to YAML"),
        ("'13.50'", "accelerators.cu135: no torch is built for 'cu135'"),
    ],
)
def test_a_cuda_that_nobody_has_is_refused_as_the_file_is_read(tmp_path: Path, version: str, told: str) -> None:
    """No index name is made up from a number: variants are those of the table, and versions are text."""
    path = edited(
        tmp_path,
        ("cu124: {kind: cuda, version: '12.4'", f"cu135: {{kind: cuda, version: {version}"),
        ("[cu124]", "[cu135]"),
    )
    with pytest.raises(MatrixError) as raised:
        schema.load(path, KNOWN)
    assert told in str(raised.value)
