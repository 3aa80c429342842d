"""An image in zstd is the gzip one in other blobs: same config, same tars, and each form is made once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests import assembling, rawlayers, toys
from tests.assembling import BASE
from torchkiln import assembly, garbage
from torchkiln.errors import ImageError, LayerMismatchError
from torchkiln.home import Home, prepare
from torchkiln.layers import recompress
from torchkiln.lock import layerlock
from torchkiln.oci import digest as digests
from torchkiln.oci.compression import GZIP, Compression
from torchkiln.oci.image import LAYER_TYPE, ZSTD_TYPE, config_bytes, manifest_descriptor
from torchkiln.oci.load import layout
from torchkiln.oci.verify import verify
from torchkiln.specs import AdoptionSpec, EnvironmentSpec, ForeignSpec, WheelSpec, compressed_key, key_in_image

if TYPE_CHECKING:
    from pathlib import Path

    from tests.assembling import Row
    from torchkiln.specs import LayerSpec

ZSTD = Compression(kind="zstd", level=3)


@pytest.fixture
def row(home: Home, tmp_path: Path) -> Row:
    """Two wheels on a base that was made before; as gzip."""
    return of(home, tmp_path, {"one.py": "one = 1\n" * 900, "one.bin": b"data" * 100_000}, {"two.py": "two = 2\n"})


def of(home: Home, root: Path, *contents: dict[str, str | bytes]) -> Row:
    """A row of wheels with these files, which lie in a folder."""
    paths = [toys.make_wheel(root, name, files=files) for name, files in zip(("one", "two"), contents, strict=False)]
    return assembling.row(home, root, [toys.pin(path) for path in paths], {"TORCHKILN_FIND_LINKS": str(root)})


def in_zstd(row: Row) -> Row:
    """The same row in zstd."""
    return replace(row, compression=ZSTD)


def forms(row: Row, image: object) -> set[str]:
    """Media types of an image's layers."""
    assert row
    return {layer.descriptor.media_type for layer in image.layers}  # type: ignore[attr-defined]


def spied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Titles of layers as they are compressed."""
    seen: list[str] = []
    real = recompress.recompress

    def spy(store: object, layer: object, *more: object, **options: object) -> object:
        seen.append(layer.title)  # type: ignore[attr-defined]
        return real(store, layer, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(recompress, "recompress", spy)
    return seen


def test_config_and_tars_are_those_of_the_gzip_image(row: Row) -> None:
    """The config's digest is the image id of engines: both have the same; the blobs are all other ones, and sound."""
    _, gzip = row.assemble()
    plan, zstd = in_zstd(row).assemble()
    assert (forms(row, gzip), forms(row, zstd)) == ({LAYER_TYPE}, {ZSTD_TYPE})
    assert config_bytes(zstd) == config_bytes(gzip)
    assert [layer.diff_id for layer in zstd.layers] == [layer.diff_id for layer in gzip.layers]
    assert manifest_descriptor(zstd).digest != manifest_descriptor(gzip).digest
    row.project.store.put_image(zstd, "row")
    assert verify(row.project.store, "row") == ()
    assert layout(f"{row.project.home.store}:row").image == zstd
    assert len(plan.layers) == len(zstd.layers)


def test_an_empty_layer_is_left_out(home: Home, tmp_path: Path) -> None:
    """A wheel without modules has no bytecode, in either form."""
    row = of(home, tmp_path, {"one/large.bin": b"data"})
    assert len(in_zstd(row).assemble()[1].layers) == len(row.assemble()[1].layers) == len(row.plan.layers) - 1


def test_the_order_of_builds_plays_no_part(row: Row, tmp_path: Path) -> None:
    """In an empty home zstd alone is the same image, and so is a second build, or one that verifies."""
    first = in_zstd(row).assemble()[1]
    home = prepare(Home(tmp_path / "other"))
    other = assembling.row(home, tmp_path, row.lock.pins, row.project.environment)
    other.assemble()
    for again in (in_zstd(other).assemble(), in_zstd(row).assemble(), in_zstd(row).assemble(verify=True)):
        assert manifest_descriptor(again[1]) == manifest_descriptor(first)


def test_each_layer_is_compressed_once(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its key, which names kind, level and format; an empty layer is none; another level is another layer."""
    seen = spied(monkeypatch)
    plan, image = in_zstd(row).assemble()
    assert sorted(seen) == sorted(layer.title for layer in image.layers)
    seen.clear()
    in_zstd(row).assemble()
    assert seen == []
    replace(row, compression=replace(ZSTD, level=4)).assemble()
    assert len(seen) == len(image.layers)
    seen.clear()
    monkeypatch.setattr(Compression, "FORMAT", 99)
    in_zstd(row).assemble()
    assert len(seen) == len(image.layers)
    assert row.project.home.lookup(compressed_key(plan.layers[0].key, ZSTD))


def test_nothing_is_made_again_where_only_zstd_is_kept(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gc` takes the gzip blobs of an image in zstd; the next build needs no wheel, no base and no gzip layer."""
    _, image = in_zstd(row).assemble()
    store, home = row.project.store, row.project.home
    store.put_image(image, "row")
    garbage.collect(home, wheels=True)
    assert all(home.lookup(spec.key) is None for spec in row.plan.layers if not isinstance(spec, ForeignSpec))
    seen = spied(monkeypatch)
    offline = replace(row, project=replace(row.project, environment={}), compression=ZSTD)
    offline.project.home.record(assembly.together.key(row.plan, row.lock), {"conflicts": 0})
    handed: list[LayerSpec] = []
    _, again = offline.assemble(lambda spec, _: handed.append(spec))
    assert manifest_descriptor(again) == manifest_descriptor(image)
    assert len(handed) >= len(image.layers)
    assert seen == []
    monkeypatch.undo()
    assert not [path for path in home.wheels.iterdir() if any(path.iterdir())]


def test_layers_of_others_stay_as_they_are(row: Row) -> None:
    """A base's own layers keep their blobs and keys, whatever form they have; ours above them are in zstd."""
    store = row.project.store
    theirs = [
        rawlayers.layer(store, rawlayers.file("etc/one"), media_type=LAYER_TYPE),
        rawlayers.layer(store, rawlayers.file("etc/two"), media_type=ZSTD_TYPE),
    ]
    specs = [
        ForeignSpec(base=BASE.base, layer=layer, number=number, count=2) for number, layer in enumerate(theirs, start=1)
    ]
    ours = AdoptionSpec(base=BASE.base, lock=replace(BASE.lock, layers=tuple(theirs)))
    laid = rawlayers.layer(store, rawlayers.file("etc/three"), media_type=ZSTD_TYPE)
    row.project.home.record(compressed_key(ours.key, ZSTD), laid.to_json())
    plan = replace(in_zstd(row).plan, layers=(*specs, ours, *row.plan.layers[1:]))
    assert plan.keys[:3] == (*(spec.key for spec in specs), f"{ours.key}.zstd-3-1")
    _, image = assembly.assemble(row.project, plan, row.lock, frozen=False, stages={})
    assert [layer.descriptor for layer in image.layers[:3]] == [layer.descriptor for layer in (*theirs, laid)]
    assert {layer.descriptor.media_type for layer in image.layers[1:]} == {ZSTD_TYPE}
    store.put_image(image, "mixed")
    assert verify(store, "mixed") == ()


def test_one_layer_of_others_may_lie_twice(row: Row) -> None:
    """Each keeps its own number in the history, so that the config does not depend on which was looked up last."""
    store = row.project.store
    theirs = rawlayers.layer(store, rawlayers.file("etc/one"), media_type=LAYER_TYPE)
    specs = [ForeignSpec(base=BASE.base, layer=theirs, number=number, count=2) for number in (1, 2)]
    ours = AdoptionSpec(base=BASE.base, lock=replace(BASE.lock, layers=(theirs, theirs)))
    laid = rawlayers.layer(store, rawlayers.file("etc/three"), media_type=ZSTD_TYPE)
    row.project.home.record(compressed_key(ours.key, ZSTD), laid.to_json())
    plan = replace(in_zstd(row).plan, layers=(*specs, ours, *row.plan.layers[1:]))
    carried_out, image = assembly.assemble(row.project, plan, row.lock, frozen=False, stages={})
    assert carried_out.layers[:2] == tuple(specs)
    assert [layer.title for layer in image.layers[:2]] == [spec.title for spec in specs]


def test_a_damaged_gzip_layer_becomes_no_zstd_layer(row: Row) -> None:
    """Its bytes are checked on the way, by the diff_id, and no index knows what came of it."""
    plan, image = row.assemble()
    store = row.project.store
    (place,) = [number for number, spec in enumerate(plan.layers) if spec.title == "one 1.0"]
    path = store.path(image.layers[place].descriptor.digest)
    blob = bytearray(path.read_bytes())
    blob[len(blob) // 2] ^= 1
    path.write_bytes(blob)
    with pytest.raises(ImageError, match=r"damaged|another tar|stated"):
        in_zstd(row).assemble()
    assert row.project.home.lookup(compressed_key(plan.layers[place].key, ZSTD)) is None


def test_a_locked_zstd_layer_is_held_to(row: Row) -> None:
    """layers.lock knows layers in either form; one that becomes another is an error that names the encoder."""
    plan, image = in_zstd(row).assemble()
    locked = dict(zip(replace(plan, compression=ZSTD).keys, image.layers, strict=True))
    row.project.layer_lock.parent.mkdir(parents=True, exist_ok=True)
    row.project.layer_lock.write_text(layerlock.render(locked))
    assert manifest_descriptor(in_zstd(row).assemble(verify=True)[1]) == manifest_descriptor(image)
    key = next(key for key in locked if key.startswith("wheel-"))
    other = replace(locked[key].descriptor, digest=digests.of_bytes(b"other"))
    row.project.layer_lock.write_text(layerlock.render({**locked, key: replace(locked[key], descriptor=other)}))
    with pytest.raises(LayerMismatchError, match=r"libzstd \d"):
        in_zstd(row).assemble()


def test_a_zstd_layer_of_another_tar_than_the_locked_is_not_taken(row: Row) -> None:
    """Where layers.lock knows a layer as gzip alone, one in zstd that the cache has must hold the very same tar."""
    plan, gzip = row.assemble()
    image = in_zstd(row).assemble()[1]
    place = next(number for number, spec in enumerate(plan.layers) if isinstance(spec, WheelSpec))
    other = next(layer for layer in image.layers if layer.diff_id != image.layers[place].diff_id)
    row.project.home.record(compressed_key(plan.layers[place].key, ZSTD), other.to_json())
    row.project.layer_lock.parent.mkdir(parents=True, exist_ok=True)
    row.project.layer_lock.write_text(layerlock.render({plan.layers[place].key: gzip.layers[place]}))
    assert manifest_descriptor(in_zstd(row).assemble()[1]) == manifest_descriptor(image)


def test_layers_elsewhere_are_found_in_their_form(row: Row, tmp_path: Path) -> None:
    """A build in zstd whose layers lie in a registry makes none: they are looked for by their keys in the image."""
    plan, image = in_zstd(row).assemble()
    remote = dict(zip(plan.keys, image.layers, strict=True))
    environment = [spec for spec in plan.layers if isinstance(spec, EnvironmentSpec | WheelSpec)]
    assert all(key_in_image(spec, ZSTD) in remote for spec in environment)
    empty = prepare(Home(tmp_path / "empty"))
    elsewhere = in_zstd(replace(row, project=replace(row.project, home=empty, environment={})))
    elsewhere.project.home.record(assembly.together.key(row.plan, row.lock), {"conflicts": 0})
    composed = elsewhere.assemble(remote=remote)[1]
    assert manifest_descriptor(composed) == manifest_descriptor(image)
    assert not list(empty.wheels.glob("*/*"))


def test_gzip_is_the_default(row: Row) -> None:
    """A plan that says nothing is what every puller reads."""
    assert row.plan.compression == GZIP
