"""Publish targets and compression: as the matrix states them, and rows as they are made for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.kiln import ROOT
from torchkiln.errors import MatrixError, UsageError
from torchkiln.lock import fit
from torchkiln.matrix import publishing, schema
from torchkiln.matrix.publishing import ANY, LAYER_LIMIT, PublishTarget
from torchkiln.matrix.target import publishing as made_for
from torchkiln.oci.compression import GZIP, Compression

SMALL = Path(__file__).with_name("small.yaml").read_text()
ZSTD = Compression(kind="zstd", level=3)
MINE = "publish_targets:\n  mine: {compression: 'zstd:9', max_layer_bytes: 1000000000, max_layers: 60}\n"


def load(folder: Path, text: str) -> schema.Matrix:
    """Read a matrix."""
    path = folder / "matrix.yaml"
    path.write_text(text)
    return schema.load(path)


def stated(text: str) -> str:
    """A small matrix with publish targets."""
    return SMALL.replace("targets:", f"{text}\ntargets:", 1)


def test_publish_targets_are_read(tmp_path: Path) -> None:
    """With what is left out as it is usual; nothing about them changes an id."""
    family = load(tmp_path, stated(MINE + "  plain: {}\n"))
    assert family.publish_targets["mine"] == PublishTarget(
        id="mine", compression=Compression(kind="zstd", level=9), max_layer_bytes=10**9, max_layers=60
    )
    assert family.publish_targets["plain"] == PublishTarget(id="plain", max_layers=LAYER_LIMIT)
    assert [row.id for row in family.targets] == [row.id for row in load(tmp_path, SMALL).targets]


def test_those_of_this_repository_take_every_row_as_it_is() -> None:
    """No wheel is near what these registries take: images for them share all layers with images for anywhere."""
    family = schema.load(ROOT / "matrix.yaml")
    assert {"ecr", "ghcr", "quay", "swr", "zstd"} <= family.publish_targets.keys()
    for place in family.publish_targets.values():
        assert place.max_layers == LAYER_LIMIT
        assert place.max_layer_bytes is None or place.max_layer_bytes >= 10**10


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("60}", "60, max_layer: 3}", "publish_targets.mine.max_layer: unknown key; nearest: max_layers"),
        ("60}", "121}", "publish_targets.mine.max_layers: input should be less than or equal to 120"),
        ("60}", "0}", "publish_targets.mine.max_layers: 0 is not possible: it must be more than 0"),
        ("1000000000", "1e9", "publish_targets.mine.max_layer_bytes"),
        ("1000000000", "1 GB", "publish_targets.mine.max_layer_bytes"),
        ("'zstd:9'", "gzip:9", "publish_targets.mine.compression: 'gzip:9': gzip has no level, wheels' own streams"),
        ("'zstd:9'", "lz4", "publish_targets.mine.compression: 'lz4' is no compression; legal: gzip, zstd (level 3)"),
        ("  mine:", "  my-own:", "publish_targets.my-own: 'my-own' is not a name"),
    ],
)
def test_mistakes_are_named_with_their_key_path(tmp_path: Path, old: str, new: str, told: str) -> None:
    """And with what is legal."""
    assert old in MINE
    with pytest.raises(MatrixError) as raised:
        load(tmp_path, stated(MINE.replace(old, new)))
    assert told in str(raised.value)


@pytest.mark.parametrize(
    "new", ["{compression: 'http://me:SECRET@example.org'}", f"'http://me:{'SECRET' * 9}@example.org/{'a' * 60}'"]
)
def test_no_mistake_repeats_a_password(tmp_path: Path, new: str) -> None:
    """Not even the beginning of one, where a value is shown in short."""
    with pytest.raises(MatrixError) as raised:
        load(tmp_path, stated(f"publish_targets:\n  mine: {new}\n"))
    assert "http://***@example.org" in str(raised.value)
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize("name", ["for", "zstd", "zstd3", "gzip"])
def test_names_of_parts_never_read_like_what_follows_an_id(tmp_path: Path, name: str) -> None:
    """A flavour of such a name would make the names of images in the store ambiguous."""
    with pytest.raises(MatrixError, match=f"flavours.{name}: '{name}'"):
        load(tmp_path, SMALL.replace("  runtime: {}\n", f"  runtime: {{}}\n  {name}: {{}}\n"))


def test_a_row_states_its_compression(tmp_path: Path) -> None:
    """Every row of the product; the others stay as wheels are."""
    family = load(tmp_path, SMALL.replace("[torch28], acc", "[torch28], compression: zstd, acc"))
    assert [row.compression for row in family.targets] == [GZIP, GZIP, ZSTD, GZIP]
    assert [row.ref for row in family.targets][2] == "torch28-cu128-zstd3"


def test_what_is_asked_goes_before_the_publish_target_and_that_before_the_row(tmp_path: Path) -> None:
    """Compression has one value; limits are the publish target's."""
    (row, *_) = load(tmp_path, SMALL).targets
    own, other = replace(row, compression=ZSTD), Compression(kind="zstd", level=9)
    place, silent = PublishTarget(id="mine", compression=other, max_layers=60), PublishTarget(id="silent")
    assert made_for(own) == own
    assert made_for(own, silent).compression == ZSTD
    assert made_for(own, place).compression == other
    assert made_for(own, place, GZIP).compression == GZIP
    assert made_for(own, place).publish_target.max_layers == 60
    assert made_for(own, place).id == row.id


def test_images_of_one_row_have_names_of_their_own_in_the_store(tmp_path: Path) -> None:
    """One for each publish target and compression, and the command that builds each is told."""
    (row, *_) = load(tmp_path, SMALL).targets
    place = PublishTarget(id="mine", max_layers=60)
    rows = [row, made_for(row, place), made_for(row, ANY, ZSTD), made_for(row, place, ZSTD)]
    assert [one.ref for one in rows] == [
        "torch25-cu124",
        "torch25-cu124-for-mine",
        "torch25-cu124-zstd3",
        "torch25-cu124-for-mine-zstd3",
    ]
    assert fit.build(rows[3]) == "./inv build --target torch25-cu124 --for mine --compression zstd:3"
    assert fit.build(rows[0]) == "./inv build --target torch25-cu124"


def test_a_publish_target_that_nobody_declared_is_refused_with_the_nearest() -> None:
    """And no name is no publish target."""
    declared = {name: PublishTarget(id=name) for name in ("ecr", "ghcr")}
    assert publishing.find(declared, "") == ANY
    assert publishing.find(declared, "ecr") == declared["ecr"]
    with pytest.raises(UsageError, match="no publish target is called gcr") as raised:
        publishing.find(declared, "gcr")
    assert raised.value.remedy == "--for ghcr"
    with pytest.raises(UsageError) as raised:
        publishing.find({}, "ecr")
    assert raised.value.remedy == "declare it there"
