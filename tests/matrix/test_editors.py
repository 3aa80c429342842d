"""matrix.schema.json tells an editor what schema.py would tell a reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.kiln import ROOT
from torchkiln.matrix import editors, facts, reading

COMMITTED = json.loads(editors.SCHEMA.read_text())
MATRIX = (ROOT / "matrix.yaml").read_text()
SMALL = Path(__file__).with_name("small.yaml").read_text()
BASE = "example.org/base@sha256:" + "0" * 64


def told(text: str) -> list[str]:
    """Key paths that an editor would underline, most specific first."""
    problems = Draft7Validator(COMMITTED).iter_errors(yaml.safe_load(text))
    return ["/".join(map(str, problem.absolute_path)) for problem in problems]


def test_the_committed_schema_is_the_models() -> None:
    """`./inv fix` writes it, `./inv check` holds it; the matrix's first line leads editors to it."""
    assert editors.SCHEMA.read_text() == editors.text(facts.read())
    modeline, named = MATRIX.splitlines()[0].split("=")
    assert modeline == "# yaml-language-server: $schema"
    assert ROOT / named == editors.SCHEMA


def test_it_is_a_schema_and_the_matrix_fits_it() -> None:
    """Valid by draft-07's own schema, and without a complaint about what is built today."""
    Draft7Validator.check_schema(COMMITTED)
    assert told(MATRIX) == []


def test_every_key_is_explained() -> None:
    """An editor shows a sentence for each key, from the model's source."""
    entries: list[dict[str, Any]] = [COMMITTED, *COMMITTED["$defs"].values()]
    keys = {f"{entry['title']}.{key}": field for entry in entries for key, field in entry["properties"].items()}
    assert "GpuEntry.driver" in keys
    assert [key for key, field in keys.items() if not field.get("description", "").endswith((".", ". "))] == []


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("suite: bookworm", "suit: bookworm", "bases/bookworm"),
        ("version: '12.4'", "version: 12.40", "accelerators/cu124/version"),
        ("cu124: {kind: cuda", "cu142: {kind: cuda", "accelerators"),
        ("    default: true\n", "    default: 'yes'\n", "bases/bookworm"),
        ("kind: debian", "kind: deb", "bases/bookworm"),
        ("  cpu: {kind: cpu}", "  cpu: {kind: gpu}", "accelerators/cpu/kind"),
        ("  torch25:", "  torch-25:", "releases"),
        ("\ntargets:", "\nwhat: {}\ntargets:", ""),
        ("  generic:\n", "  generic:\n    memory_gb: -40\n", "gpus/generic/memory_gb"),
        ("thresholds: {}", "thresholds: {speed.cuda.block: -1}", "validation/thresholds/speed.cuda.block"),
        ("thresholds: {}", "thresholds: {speed.cuda.blok: 1}", "validation/thresholds"),
        ("required: ['*']", "required: []", "validation/required"),
        ("[--shm-size=2g]", "[rm]", "gpus/generic/run_options/0"),
        ("validation:\n", "validation:\n  needed: ['*']\n", "validation"),
    ],
)
def test_a_mistake_is_seen_by_both(old: str, new: str, where: str) -> None:
    """What the reader refuses for its form, an editor underlines at the same key."""
    assert old in SMALL
    wrong = SMALL.replace(old, new, 1)
    assert where in told(wrong)
    assert reading.parse(wrong.encode())[0] is None or new.startswith("cu142")


def test_each_kind_of_base_has_its_own_keys() -> None:
    """What fits one kind of base does not fit another."""
    pulled = f"\n  team: {{kind: registry, image: '{BASE}', python: '3.11', glibc: '2.36'}}\n"
    assert told(SMALL.replace("\nreleases:", f"{pulled}\nreleases:", 1)) == []
    wrong = pulled.replace("kind: registry", "kind: registry, suite: bookworm")
    assert told(SMALL.replace("\nreleases:", f"{wrong}\nreleases:", 1)) == ["bases/team"]
