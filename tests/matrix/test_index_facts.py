from __future__ import annotations

import re
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from torchkiln.matrix import factfile

FOUND: dict[str, Any] = yaml.load(factfile.FACTS.read_bytes(), Loader=yaml.CSafeLoader)


def test_each_wheel_of_the_index_has_one_full_hash() -> None:
    """A hash that lost a digit, or a file with two hashes, would refuse the right file."""
    rows = FOUND["index_wheels"]
    assert len({row["file"] for row in rows}) == len(rows)
    assert [row["file"] for row in rows if not re.fullmatch("[0-9a-f]{64}", row["sha256"])] == []
    assert [row["file"] for row in rows if row["agree"] > len(row["by"])] == []
    for row in rows:
        parse_wheel_filename(row["file"])


def test_a_variant_asks_for_exact_pins_and_for_the_triton_of_its_release() -> None:
    """What is read there is resolved without the wheel at hand, so a slip would be an image of wrong libraries."""
    triton = {row["torch"]: row["triton"] for row in FOUND["releases"]["rows"]}
    for row in FOUND["index_requirements"]:
        asked = [Requirement(text) for text in row["requires"]]
        assert [
            str(one) for one in asked if not one.name.startswith("cuda-bindings") and "==" not in str(one.specifier)
        ] == []
        found = [str(one.specifier) for one in asked if "triton" in one.name]
        assert found == ([] if row["variant"] == "cpu" else [f"=={triton[row['torch']]}"])
