"""The bytes of matrix.yaml → Document, or every mistake in words with its key path and the nearest legal value."""

from __future__ import annotations

import math
import reprlib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from torchkiln.errors import redact
from torchkiln.matrix.document import Document

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from pydantic_core import ErrorDetails

PLAIN = {"missing": "is missing", "too_short": "is empty, so nothing would be {}: name at least one"}
"""What pydantic's kinds of mistake are called here."""
NAMED = {"releases", "accelerators", "gpus", "flavours", "bases"}
"""Keys of a product that hold names."""
NUMBERS = {"string_type", "int_type", "greater_than", "finite_number"}
"""Kinds of mistake that are about a number."""
LARGEST = 100_000
"""Values in the whole file, aliases written out."""
Loc = tuple[int | str, ...]


class WrittenFloat(float):
    """A YAML number that remembers how it was written: 12.10 is 12.1 to everybody else."""

    text = ""


class Loader(yaml.CSafeLoader):
    """Safe YAML that collects duplicate keys instead of letting the last one win."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self.duplicates: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002  as in the base class
        """As in PyYAML, but a key that stands twice is remembered."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in lines:
                self.duplicates.append(f"line {line}: key {key.value!r} is on line {lines[key.value]} already")
            else:
                lines[key.value] = line
        return super().construct_mapping(node, deep)


def _float(loader: Loader, node: yaml.ScalarNode) -> WrittenFloat:
    number = WrittenFloat(loader.construct_yaml_float(node))
    number.text = node.value
    return number


def _int(_loader: Loader, node: yaml.ScalarNode) -> int | str:
    """Plain decimals only; YAML 1.1 would read 12:40 as 760 and 010 as 8."""
    digits = node.value.removeprefix("-")
    plain = digits.isdecimal() and not (digits.startswith("0") and digits != "0")
    return int(node.value) if plain else str(node.value)


Loader.add_constructor("tag:yaml.org,2002:float", _float)
Loader.add_constructor("tag:yaml.org,2002:int", _int)


def parse(data: bytes) -> tuple[Document | None, list[str]]:
    """The document, or every problem with it in words."""
    loader = Loader(data)
    try:
        node = loader.get_single_node()
        if node is not None and _size(node, {}) > LARGEST:
            return None, [f"it means more than {LARGEST} values: aliases (*name) repeat too much"]
        found = loader.construct_document(node) if node is not None else None
    except yaml.YAMLError as error:
        return None, [" ".join(str(error).split())]
    except RecursionError:
        return None, ["what lies in lists and keys lies too deep"]
    try:
        document = Document.model_validate(found)
    except ValidationError as error:
        return None, [*loader.duplicates, *(_told(problem) for problem in error.errors())]
    return (None, loader.duplicates) if loader.duplicates else (document, [])


def _size(node: yaml.Node, known: dict[int, float]) -> float:
    """How many values a node means when its aliases are written out, as messages do; without end for one in itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 if isinstance(node, yaml.ScalarNode) else 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]


def path(loc: Loc) -> str:
    """A key path as people write it: `targets[0].releases[1]`; kinds, which pydantic puts into it, are left out."""
    text, kind = "", cast("Any", Document)
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part != "[key]" and part not in _kinds(kind):
            text += f".{part}"
        kind = _member(kind, part)
    return text.removeprefix(".") or "the file"


def nearest(word: str, legal: Iterable[str]) -> str:
    """`; nearest: …` or, when nothing is near, `; legal: …`."""
    known = sorted(legal)
    near = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; nearest: {near[0]}" if near else f"; legal: {', '.join(known) or 'none'}"


def _told(problem: ErrorDetails) -> str:
    loc = problem["loc"]
    if problem["type"].startswith("union_tag"):  # of an entry whose `kind` says what else belongs into it
        tag, legal = problem.get("ctx", {}).get("tag"), _kinds(_at(loc))
        fault = f"{tag!r} is not known{nearest(tag, legal)}" if tag else f"is missing: one of {', '.join(legal)}"
        return f"{path((*loc, 'kind'))}: {fault}"
    return f"{path(loc)}: {_fault(problem)}"


def _fault(problem: ErrorDetails) -> str:
    kind, value, loc = problem["type"], problem["input"], problem["loc"]
    if kind in PLAIN:
        return PLAIN[kind].format("required" if "required" in loc else "built")
    if kind == "extra_forbidden":
        return f"unknown key{nearest(str(loc[-1]), legal_keys(loc[:-1]))}"
    if isinstance(value, (int, float)) and not isinstance(value, bool) and kind in NUMBERS:
        return _misplaced(kind, getattr(value, "text", str(value)), loc)
    if kind == "literal_error":
        legal = str(problem.get("ctx", {}).get("expected", "")).replace(" or ", ", ").replace("'", "").split(", ")
        return f"{_shown(value)} is not known{nearest(str(value) if isinstance(value, str) else '', legal)}"
    if kind == "string_pattern_mismatch" and loc[-1] == "[key]":
        return f"{value!r} is not a name: lower-case letters and digits, letter first, no dashes"
    message = problem["msg"].removeprefix("Value error, ")
    if kind in {"model_type", "dict_type"}:
        message = f"{'is empty' if value is None else f'holds {_shown(value)}'}; keys belong here{_keys(loc)}"
    return message[0].lower() + message[1:]


def _misplaced(kind: str, text: str, loc: Loc) -> str:
    """What is wrong with a number."""
    if kind == "int_type":
        return f"{text} is no whole number"
    if kind != "string_type":
        return f"{text} is not possible: it must be more than 0, and finite"
    if _is_name(loc):
        return f"{text} is not a name: lower-case letters and digits, letter first"
    return f"{text} is a number to YAML, and numbers lose digits: write '{text}' in quotes"


def _is_name(loc: Loc) -> bool:
    """Whether a name belongs there: a key of a section, or one of the lists that a product is made of."""
    return loc[-1] == "[key]" or (loc[0] == "targets" and set(loc) & NAMED != set())


class _Short(reprlib.Repr):
    """Without passwords, which can't be told once a string is cut."""

    def repr_str(self, x: str, level: int) -> str:
        """As in the standard library."""
        return super().repr_str(redact(x), level)


def _shown(value: object) -> str:
    """A value in short."""
    short = _Short()
    short.maxlevel, short.maxstring = 1, 60
    return short.repr(value)


def _keys(loc: Loc) -> str:
    keys = legal_keys(loc)
    return f": {', '.join(keys)}" if keys else ""


def legal_keys(loc: Loc) -> Sequence[str]:
    """The keys that the model at a location declares."""
    kind = _at(loc)
    return tuple(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else ()


def _at(loc: Loc) -> Any:  # noqa: ANN401  annotations are values of no common type
    kind: Any = Document
    for part in loc:
        kind = _member(kind, part)
    return kind


def _member(kind: Any, part: int | str) -> Any:  # noqa: ANN401  annotations are values of no common type
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(str(part))
        return field.annotation if field else None
    if kinds := _kinds(kind):
        return kinds.get(str(part))
    return get_args(kind)[-1] if get_origin(kind) in {dict, list} else None


def _kinds(kind: Any) -> Mapping[str, type[BaseModel]]:  # noqa: ANN401  as above
    """The models among which the key `kind` decides, by its value."""
    models = get_args(get_args(kind)[0]) if get_origin(kind) is Annotated else ()
    entries = [model for model in models if isinstance(model, type) and issubclass(model, BaseModel)]
    return {get_args(model.model_fields["kind"].annotation)[0]: model for model in entries}
