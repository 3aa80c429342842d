"""Base locks are plain text that survives reading and writing, and say what changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchkiln.errors import LockError
from torchkiln.lock import baselock
from torchkiln.oci import digest as digests
from torchkiln.oci.image import LAYER_TYPE, PLAIN_TYPE, Descriptor, Layer

if TYPE_CHECKING:
    from pathlib import Path


def layer(text: str, media_type: str = LAYER_TYPE) -> Layer:
    """A layer that exists on paper."""
    blob = Descriptor(media_type=media_type, digest=digests.of_bytes(text.encode()), size=len(text))
    return Layer(descriptor=blob, diff_id=digests.of_bytes(b"tar" + text.encode()), unpacked_size=512)


LAYERS = (layer("one"), layer("two", PLAIN_TYPE))
IMAGE = baselock.of_image(LAYERS, source="127.0.0.1/x@sha256:" + "a" * 64, config="sha256:" + "b" * 64, python="3.11.2")
debian_names = st.from_regex(r"[a-z0-9][a-z0-9+.-]{1,12}(:amd64)?", fullmatch=True)
debian_versions = st.from_regex(r"([0-9]:)?[0-9][A-Za-z0-9.+~-]{0,12}", fullmatch=True)


@given(st.dictionaries(debian_names, debian_versions, max_size=8), st.lists(debian_names, max_size=3))
def test_a_base_lock_survives_its_text_form(packages: dict[str, str], names: list[str]) -> None:
    """parse(render(lock)) is the lock, what was asked for and checksums included."""
    for asked in ((), (("suite", "bookworm"), ("packages", " ".join(names)))):
        lock = baselock.make(packages.items(), asked)
        assert baselock.parse(baselock.render(lock)) == lock
        assert (lock.asked, bool(lock.inputs)) == (asked, bool(asked))


def test_what_was_asked_for_is_no_part_of_the_digest() -> None:
    """The digest is in the base layer's key: of the same packages it is the same, and of others another."""
    one, two = (baselock.make([("gcc", "12.2")], (("suite", suite),)) for suite in ("bookworm", "stable"))
    assert one.inputs != two.inputs
    assert one.digest == two.digest == baselock.make([("gcc", "12.2")]).digest
    assert baselock.make([("gcc", "12.3")], one.asked).digest != one.digest


def test_a_base_lock_refuses_other_lines() -> None:
    """A line without a version, or a package listed twice, is named."""
    with pytest.raises(LockError) as raised:
        baselock.parse("gcc=1\ngcc=2\ntini\n")
    assert "'tini' is neither name=version nor a layer" in str(raised.value)
    assert "gcc is listed twice" in str(raised.value)


def test_difference_says_what_an_archive_changed() -> None:
    """Changed, added and removed packages are told apart; equal ones are left out."""
    before = baselock.make([("gcc", "12.2"), ("tini", "0.19"), ("old", "1")])
    after = baselock.make([("gcc", "12.3"), ("tini", "0.19"), ("new", "1")])
    assert baselock.difference(before, after) == ("gcc 12.2 → 12.3", "+ new 1", "- old 1")
    assert baselock.difference(before, before) == ()


def test_the_lock_of_an_image_survives_its_text_form() -> None:
    """Layers in their order, what they were made from, the config and Python's version; the checksum is of all."""
    assert baselock.parse(baselock.render(IMAGE)) == IMAGE
    assert IMAGE.layers == LAYERS
    assert (IMAGE.python, IMAGE.packages) == ("3.11.2", ())
    assert baselock.of_image(LAYERS[::-1], source="x", config="y", python="3").digest != IMAGE.digest


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("# python: 3.11.2\n", "", "no line '# python"),
        ("# config", "gcc=1\n# config", "packages and layers are mixed"),
        (" tar+gzip ", " tar+lzma ", "nor a layer"),
    ],
)
def test_the_lock_of_an_image_refuses_what_is_no_layer(before: str, after: str, said: str) -> None:
    """A heading that lacks, a package among layers, a form that nobody unpacks."""
    with pytest.raises(LockError, match=said):
        baselock.parse(baselock.render(IMAGE).replace(before, after))


def test_difference_tells_layers_and_python() -> None:
    """By their place, so that a rebuilt image shows where it begins to differ."""
    other = baselock.of_image((LAYERS[0], layer("new")), source="x", config="y", python="3.11.9")
    changed = LAYERS[1].diff_id[:19], layer("new").diff_id[:19]
    assert baselock.difference(IMAGE, other) == (f"layer 1 {changed[0]} → {changed[1]}", "python 3.11.2 → 3.11.9")
    assert baselock.difference(IMAGE, replace(IMAGE, digest="")) == ()


def test_a_base_that_nobody_locked_says_what_to_run(tmp_path: Path) -> None:
    """The command is in the remedy; so it is for a file that is no text."""
    with pytest.raises(LockError, match=r"no base-jammy\.txt") as raised:
        baselock.read(tmp_path / "base-jammy.txt", remedy="./inv lock --base --target x")
    assert raised.value.remedy == "./inv lock --base --target x"
    (tmp_path / "bad").write_bytes(b"\xff\xfe")
    with pytest.raises(LockError, match="cannot be read"):
        baselock.read(tmp_path / "bad")
