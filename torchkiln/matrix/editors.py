"""JSON Schema of matrix.yaml, for editors: the file's first line names it, `./inv fix` writes it from the models.

It holds what can be said without judgement: keys, types, forms, closed lists of names. Whether a name is declared,
or a row can work, is for schema.py and the rules.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import GenerateJsonSchema

from torchkiln.matrix import document, facts, parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchkiln.matrix.facts import Facts

SCHEMA = Path(__file__).with_name("matrix.schema.json")
DIALECT = "http://json-schema.org/draft-07/schema#"
"""What editors' YAML servers know best; nothing here needs a newer one."""


class _Schema(GenerateJsonSchema):
    """Without titles such as `Memory Gb`: a key is its own title."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ANN401, ARG002  pydantic's method
        return False


def text(known: Facts) -> str:
    """The schema file."""
    return json.dumps(schema(known), indent=1, ensure_ascii=False) + "\n"


def schema(known: Facts) -> dict[str, Any]:
    """The schema of the whole file, as JSON Schema draft-07."""
    found = document.Document.model_json_schema(schema_generator=_Schema)
    definitions: dict[str, dict[str, Any]] = found["$defs"]
    _describe(found, document.Document)
    for name, entry in definitions.items():
        _describe(entry, getattr(document, name))
    _close(found)
    accelerators = {"enum": _accelerators(known)}
    found["properties"]["accelerators"] |= {"propertyNames": accelerators}
    definitions["ProductEntry"]["properties"]["accelerators"]["items"] |= accelerators
    return {"$schema": DIALECT, **found, "title": "matrix.yaml", "description": "Everything Torchkiln builds."}


def _accelerators(known: Facts) -> list[str]:
    """Every accelerator that any torch was built for, as the matrix calls it."""
    return sorted(found.id for variant in facts.every_variant(known) if (found := parts.accelerator(variant)))


def _close(part: Any) -> None:  # noqa: ANN401  any JSON
    """No key but names where names are keys: the models hold to that, pydantic's schema does not say it."""
    if isinstance(part, dict):
        part |= {"additionalProperties": False} if "patternProperties" in part else {}
        part.pop("discriminator", None)  # of OpenAPI, not of JSON Schema
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _close(inner)


def _describe(entry: dict[str, Any], model: type) -> None:
    """Give each key the sentence that stands below its field, in the model or one that it extends."""
    said: dict[str, str] = {}
    for one in reversed(model.__mro__):
        said |= _sentences(one) if one.__module__ == document.__name__ else {}
    for key, field in entry["properties"].items():
        field["description"] = said.get(key, "")


def _sentences(model: type) -> Mapping[str, str]:
    """The sentence below each field of a class, from its source: Python itself forgets them."""
    (node,) = ast.parse(inspect.getsource(model)).body
    body = node.body if isinstance(node, ast.ClassDef) else []
    return {
        field.target.id: below.value.value
        for field, below in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }
