"""Every component of a layer's key changes the key: no old layer is ever served for a new input, option or format."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import pytest

from torchkiln import specs
from torchkiln.lock import baselock
from torchkiln.lock.lockfile import Pin
from torchkiln.matrix.target import Base
from torchkiln.oci import digest as digests
from torchkiln.oci.image import LAYER_TYPE, Descriptor, Layer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchkiln.specs import LayerSpec

PIN = Pin(name="toy", version="1", sha256="a" * 64, filename="toy-1-py3-none-any.whl", size=9)
LAYER = Layer(
    descriptor=Descriptor(media_type=LAYER_TYPE, digest=digests.of_bytes(b"blob"), size=4, annotations={"a": "b"}),
    diff_id=digests.of_bytes(b"tar"),
    unpacked_size=5,
    title="theirs",
)
BASE = Base(
    id="bookworm",
    kind="debian",
    suite="bookworm",
    python="3.11",
    glibc="2.36",
    packages=("python3",),
    flavour="devel",
    mirror="http://127.0.0.1/debian",
    keyring="/keys.gpg",
    image="registry.example/base",
)
LOCK = replace(
    baselock.make([("libpython3.11-minimal", "3.11.2-6")], (("suite", "bookworm"),)),
    layers=(LAYER,),
    source="x",
    config="y",
    version="3.11.2",
)
SPECS: tuple[LayerSpec, ...] = (
    specs.BaseSpec(base=BASE, lock=LOCK, recipe="sha256:e"),
    specs.ForeignSpec(base=BASE, layer=LAYER, number=1, count=2),
    specs.AdoptionSpec(base=BASE, lock=LOCK, recipe="sha256:e"),
    specs.WheelSpec(pins=(PIN,), part=specs.Part(number=1, max_bytes=9)),
    specs.BytecodeSpec(pins=(PIN,), python="3.11.2", image="sha256:e"),
    specs.EnvironmentSpec(python="3.11", protected=("torch==2.5.1",), interpreter="/usr/local/bin/python3"),
    specs.ToolkitSpec(pins=(PIN,), archs="9.0"),
    specs.SuiteSpec(files=(("__main__.py", "c" * 64),), expectation=b"{}"),
)
BY_HASH = "the file is named by its sha256, and nothing else of a pin can change what is in it"
FOR_PEOPLE = "for people: it is said of the layer, and is not in it"
OF_LOCK = "the lock's digest names it"
NOT_OURS = "a base of another kind has it"
NOT_MADE = "it says where the base stands in rows; nothing is made from it"
BELOW = "the layers below are theirs: their diff_ids name all that is in them"
NO_PART: dict[str, dict[str, str]] = {
    "BaseSpec": {
        "base.id": FOR_PEOPLE,
        "base.flavour": FOR_PEOPLE,
        "base.default": NOT_MADE,
        "base.glibc": "what mmdebstrap installs follows from the suite and the packages",
        "base.interpreter": NOT_OURS,
        "base.image": NOT_OURS,
        **{
            f"lock.{name}": OF_LOCK for name in ("packages", "layers", "source", "config", "version", "asked", "inputs")
        },
    },
    "ForeignSpec": {
        "base": FOR_PEOPLE,
        "number": FOR_PEOPLE,
        "count": FOR_PEOPLE,
        "layer.title": FOR_PEOPLE,
        "layer.unpacked_size": "the digests name all bytes",
        "layer.descriptor.media_type": "how the blob is compressed is in its bytes",
        "layer.descriptor.size": "the digest names all bytes",
        "layer.descriptor.annotations": FOR_PEOPLE,
    },
    "AdoptionSpec": {
        **{f"base.{name}": FOR_PEOPLE for name in ("id", "flavour")},
        **{f"base.{name}": NOT_MADE for name in ("default", "kind")},
        **{f"base.{name}": NOT_OURS for name in ("suite", "components", "mirror", "keyring")},
        "base.image": BELOW,
        **{f"lock.{name}": BELOW for name in ("packages", "source", "config", "version", "digest", "asked", "inputs")},
        **{f"lock.layers.{name}": BELOW for name in ("descriptor", "unpacked_size", "title")},
    },
    **{
        kind: {f"pins.{name}": BY_HASH for name in ("name", "version", "filename", "size")}
        for kind in ("WheelSpec", "BytecodeSpec", "ToolkitSpec")
    },
}
"""What plays no part in a key, and why: everything else does."""


@dataclass(frozen=True, slots=True)
class Change:
    """A spec with one thing in it changed."""

    path: str
    spec: Any


def changes(value: Any, path: str = "") -> Iterator[Change]:  # noqa: ANN401  any field's
    """The value with every leaf of every field changed, one at a time, and every list longer and empty."""
    for field in fields(value):
        if not field.compare:
            continue  # declared to be no part of the spec's identity
        inner, name = getattr(value, field.name), f"{path}.{field.name}".removeprefix(".")
        for change in _changed(inner, name):
            yield Change(change.path, replace(value, **{field.name: change.spec}))


def _changed(value: Any, path: str) -> Iterator[Change]:  # noqa: ANN401  as above
    if is_dataclass(value):
        yield from changes(value, path)
    elif isinstance(value, tuple) and value and is_dataclass(value[0]):
        yield Change(path, (*value, _another(value[0])))
        for change in changes(value[0], path):
            yield Change(change.path, (change.spec, *value[1:]))
    elif isinstance(value, tuple):
        yield Change(path, (*value, value[0] if not value or isinstance(value[0], tuple) else f"{value[0]}x"))
        yield Change(path, value[1:])
    elif isinstance(value, dict):
        yield Change(path, {**value, "more": "x"})
    else:
        yield Change(path, _other(value))


def _another(value: Any) -> Any:  # noqa: ANN401  as above
    """One more of its kind."""
    return replace(value, **({"sha256": "f" * 64} if hasattr(value, "sha256") else {"diff_id": digests.of_bytes(b"f")}))


def _other(value: Any) -> Any:  # noqa: ANN401  as above
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return value + (b"x" if isinstance(value, bytes) else "x")


def no_part(spec: LayerSpec, path: str) -> str:
    """Why a component plays no part in a key; empty if it does."""
    declared = NO_PART.get(type(spec).__name__, {})
    return next((why for name, why in declared.items() if path == name or path.startswith(f"{name}.")), "")


def test_every_kind_of_layer_is_held() -> None:
    """A new kind of spec stands here too."""
    assert {type(spec) for spec in SPECS} == set(get_args(specs.LayerSpec))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_every_component_changes_the_key(spec: LayerSpec) -> None:
    """Each leaf of each field, unless it is declared, with a reason, to play no part; then it really plays none."""
    keys = {spec.key}
    seen = set()
    for change in changes(spec):
        seen.add(change.path)
        if no_part(spec, change.path):
            assert change.spec.key == spec.key, f"{change.path} changes the key"
        else:
            assert change.spec.key not in keys, f"{change.path} plays no part in the key"
            keys.add(change.spec.key)
    declared = NO_PART.get(type(spec).__name__, {})
    assert {
        name for name in declared if not any(no_part(spec, path) and path.startswith(name) for path in seen)
    } == set()


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_every_format_changes_the_key(spec: LayerSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the layer itself, and of whatever it is made by."""
    before = spec.key
    monkeypatch.setattr(type(spec), "FORMAT", spec.FORMAT + 1)
    assert spec.key != before


def test_the_rule_of_splitting_changes_the_key_of_parts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole wheels stay what they are."""
    part, whole = (specs.WheelSpec(pins=(PIN,), part=one) for one in (specs.Part(number=1, max_bytes=9), None))
    before = part.key, whole.key
    monkeypatch.setattr(specs.Part, "FORMAT", 2)
    assert (part.key == before[0], whole.key == before[1]) == (False, True)


def test_kinds_never_share_a_key() -> None:
    """The same pins are another layer as files, bytecode and toolkit."""
    assert len({spec.key for spec in SPECS}) == len(SPECS)


def test_what_is_left_out_of_comparison_is_left_out_of_keys() -> None:
    """A field that is declared `compare=False` is for people."""
    for spec in SPECS:
        for field in (one for one in fields(spec) if not one.compare):
            changed: Any = {field.name: "another"}
            assert replace(spec, **changed).key == spec.key
