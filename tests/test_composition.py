"""Images are put together from what a repository has: nothing is fetched or made that is there, nothing is believed."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from tests import assembling, toyregistry, toys
from tests.assembling import BASE
from tests.toyregistry import REPOSITORY, Toy
from torchkiln import composition
from torchkiln import home as homes
from torchkiln.assembly import claims
from torchkiln.composition import CHEAP
from torchkiln.lock import layerlock
from torchkiln.oci import digest as digests
from torchkiln.oci import layerindex, remote
from torchkiln.oci.compression import Compression
from torchkiln.oci.image import manifest_descriptor
from torchkiln.oci.push import pushing
from torchkiln.specs import BaseSpec, BytecodeSpec, EnvironmentSpec, SuiteSpec, WheelSpec, key_in_image

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.assembling import Row
    from torchkiln.oci.image import Image, Layer
    from torchkiln.oci.remote import Remote
    from torchkiln.plan import ImagePlan
    from torchkiln.specs import LayerSpec

NAMES = ("one", "two")
NOBODY = {"NETRC": "/nonexistent"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """A registry with an image, and the row that it was made from."""

    toy: Toy
    row: Row
    plan: ImagePlan
    image: Image
    root: Path

    @property
    def where(self) -> str:
        """As --from has it."""
        return f"{self.toy.host}/{REPOSITORY}"

    def lock(self) -> None:
        """Let layers.lock know what every machine makes the same."""
        known = {spec.key: layer for spec, layer in self.made() if not isinstance(spec, composition.CHEAP)}
        path = self.row.project.layer_lock
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(layerlock.render(known))

    def elsewhere(self, *wheels: str, at: str = "second") -> Row:
        """The same row on a machine that has nothing, with these wheels in reach."""
        for name in wheels:
            wheel(self.root, name)
        fresh = homes.prepare(homes.Home(self.root / at))
        environment = {"TORCHKILN_FIND_LINKS": str(self.root), "UV_INDEX_URL": "http://127.0.0.1:9", **NOBODY}
        return replace(self.row, project=replace(self.row.project, home=fresh, environment=environment), stages={})

    def made(self) -> Iterable[tuple[LayerSpec, Layer]]:
        """What the image's layers are made from, and they."""
        return zip(self.plan.layers, self.image.layers, strict=True)


@contextmanager
def lending(shop: Shop, row: Row) -> Iterator[Remote]:
    """What the registry has."""
    with remote.at(shop.where, row.project.store, environment=NOBODY, sleep=lambda _seconds: None) as found:
        yield found


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Built here, pushed and indexed; the wheels are gone."""
    root = tmp_path_factory.mktemp("checkout")
    paths = [wheel(root, name) for name in NAMES]
    own = homes.prepare(homes.Home(root / "own"))
    row = assembling.row(own, root, [toys.pin(path) for path in paths], {"TORCHKILN_FIND_LINKS": str(root)})
    plan, image = row.assemble()
    with (
        toyregistry.serving() as toy,
        pushing(f"{toy.host}/{REPOSITORY}:one", row.project.store, environment=NOBODY) as pusher,
    ):
        pusher.finish(image)
        composition.index(pusher.delivery.registry, plan, image, row.lock)
    for path in paths:
        path.unlink()
    return Shop(toy=toy, row=row, plan=plan, image=image, root=root)


@pytest.fixture
def shop(pushed: Shop, tmp_path: Path) -> Iterator[Shop]:
    """A registry that has the same; what a test does to it is its own."""
    (tmp_path / "validate").symlink_to(pushed.root / "validate")
    with toyregistry.serving() as toy:
        toy.manifests, toy.blobs = dict(pushed.toy.manifests), dict(pushed.toy.blobs)
        row = replace(pushed.row, project=replace(pushed.row.project, root=tmp_path))
        yield replace(pushed, toy=toy, row=row, root=tmp_path)


def wheel(folder: Path, name: str) -> Path:
    """One with a module."""
    return toys.make_wheel(folder, name, files={f"{name}.py": f"{name} = 1\n"})


def composed(shop: Shop, row: Row, *, here: bool = False) -> Image:
    """The image, and what had to be fetched or made is told by the row's stages."""
    with lending(shop, row) as found:
        layers = composition.compose(row.project, row.plan, row.lock, found, here=here)
    return row.assemble(remote=layers)[1]


def test_a_locked_image_is_composed_without_moving_its_layers(shop: Shop) -> None:
    """Same digest; no wheel is fetched, none converted, no base made, nothing compiled; only small layers are here."""
    shop.lock()
    row = shop.elsewhere()
    image = composed(shop, row)
    assert manifest_descriptor(image) == manifest_descriptor(shop.image)
    assert row.stages == {}
    cheap = {layer.title for layer in image.layers if row.project.store.has(layer.descriptor)}
    assert cheap == {spec.title for spec in row.plan.layers if isinstance(spec, EnvironmentSpec | SuiteSpec)}


def test_layers_go_from_one_registry_to_another(shop: Shop) -> None:
    """They are streamed: what was composed is whole there, and nothing but small layers was ever here."""
    shop.lock()
    row = shop.elsewhere()
    image = composed(shop, row)
    with (
        toyregistry.serving() as other,
        pushing(f"{other.host}/{REPOSITORY}:one", row.project.store, environment=NOBODY, source=shop.where) as pusher,
    ):
        assert pusher.finish(image).digest == manifest_descriptor(shop.image).digest
        for layer in shop.image.layers:
            assert other.blobs[layer.descriptor.digest] == shop.toy.blobs[layer.descriptor.digest]
    assert not row.project.store.has(shop.image.layers[0].descriptor)


def test_blobs_come_where_they_are_needed_here(shop: Shop) -> None:
    """Then the cache is as if they had been made here: the next build needs no registry."""
    shop.lock()
    row = shop.elsewhere()
    image = composed(shop, row, here=True)
    assert manifest_descriptor(image) == manifest_descriptor(shop.image)
    assert all(row.project.store.has(layer.descriptor) for layer in image.layers)
    assert manifest_descriptor(row.assemble()[1]) == manifest_descriptor(image)
    assert row.stages == {}


def test_what_no_lock_knows_is_brought_and_read(shop: Shop) -> None:
    """The same image too: but every blob that is not known has moved."""
    row = shop.elsewhere()
    image = composed(shop, row)
    assert manifest_descriptor(image) == manifest_descriptor(shop.image)
    assert all(row.project.store.has(layer.descriptor) for layer in image.layers)
    assert row.stages == {}


@pytest.mark.parametrize("locked", [False, True])
def test_what_no_lock_knows_is_noted_as_a_claim(shop: Shop, *, locked: bool) -> None:
    """Whatever is taken by its index's word, so that it is never locked as made here."""
    if locked:
        shop.lock()
    row = shop.elsewhere()
    composed(shop, row, here=True)
    dear = [key for key, spec in zip(row.plan.keys, row.plan.layers, strict=True) if not isinstance(spec, CHEAP)]
    assert claims.among(row.project.home, row.plan.keys) == ([] if locked else dear)


@pytest.mark.parametrize("moved", [False, True])
def test_what_is_made_of_a_claim_is_one_too(shop: Shop, *, moved: bool) -> None:
    """Bytecode by the Python of a claimed base, whose packages may be others, and another compression; no wheel's."""
    held = [*BASE.lock.packages, ("newcomer", "1")] if moved else None
    maker = shop.elsewhere(at="maker").project
    base = assembling.make_base(maker, BASE, packages=held)
    for name in [name for name in shop.toy.manifests if name.startswith(("layer-wheel-", "layer-bytecode-"))]:
        del shop.toy.manifests[name]
    shop.toy.blobs[base.descriptor.digest] = maker.store.read(base.descriptor.digest)
    shop.toy.manifests[f"layer-{BASE.key}"] = ("", layerindex.entry(BASE.key, base))
    row = shop.elsewhere(*NAMES)
    composed(shop, row)
    row = replace(row, compression=Compression(kind="zstd", level=3))
    plan, _ = row.assemble()
    tainted = [spec for spec in plan.layers if isinstance(spec, BytecodeSpec | BaseSpec)]
    keys = {spec.key for spec in tainted} | {key_in_image(spec, row.compression) for spec in tainted}
    every = {*plan.keys, *(spec.key for spec in plan.layers)}
    assert set(claims.among(row.project.home, every)) == keys
    assert (BASE.key in keys) is not moved


def test_what_no_lock_knows_is_not_taken_by_a_frozen_build(shop: Shop) -> None:
    """There is nothing to hold it against."""
    row = shop.elsewhere()
    with lending(shop, row) as found:
        assert composition.compose(row.project, row.plan, row.lock, found, here=True, frozen=True) == {}
    assert list(row.project.store.blobs.glob("*")) == []


def test_a_locked_image_does_not_depend_on_what_the_index_says(shop: Shop) -> None:
    """Whoever may write to the repository names other layers, or damages the entries: same image, none of it read."""
    shop.lock()
    other = shop.image.layers[-1]
    for spec in shop.plan.layers:
        shop.toy.manifests[f"layer-{spec.key}"] = ("", layerindex.entry(spec.key, other))
    row = shop.elsewhere()
    assert manifest_descriptor(composed(shop, row, here=True)) == manifest_descriptor(shop.image)
    assert row.stages == {}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", [WheelSpec, BytecodeSpec])
def test_a_locked_layer_with_other_bytes_there_is_made_here(
    shop: Shop, kind: type[LayerSpec], capsys: pytest.CaptureFixture[str], *, frozen: bool
) -> None:
    """Of its wheel alone, with a warning; the image is the same."""
    shop.lock()
    spec, bad = next((spec, layer) for spec, layer in shop.made() if isinstance(spec, kind))
    shop.toy.blobs[bad.descriptor.digest] = bytes(bad.descriptor.size)
    row = shop.elsewhere(*NAMES)
    with lending(shop, row) as found:
        layers = composition.compose(row.project, row.plan, row.lock, found, here=True, frozen=frozen)
    said = capsys.readouterr().err
    assert f"{spec.title}: what {shop.where} has is not used" in said
    assert f"./inv push {shop.where}:TAG" in said
    image = row.assemble(remote=layers)[1]
    assert manifest_descriptor(image) == manifest_descriptor(shop.image)
    assert digests.of_bytes(row.project.store.read(bad.descriptor.digest)) == bad.descriptor.digest
    assert len(list(row.project.home.wheels.iterdir())) == 1


def test_a_damaged_base_is_dropped_and_what_needs_it_too(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """What was to be compiled by it is not brought again and again: one warning."""
    shop.lock()
    base, *_ = shop.image.layers
    code = next(layer for spec, layer in shop.made() if isinstance(spec, BytecodeSpec))
    del shop.toy.blobs[code.descriptor.digest]
    shop.toy.blobs[base.descriptor.digest] = bytes(base.descriptor.size)
    row = shop.elsewhere(*NAMES)
    with lending(shop, row) as found:
        layers = composition.compose(row.project, row.plan, row.lock, found, here=False)
    assert base.descriptor.digest not in {layer.descriptor.digest for layer in layers.values()}
    assert capsys.readouterr().err.count("is not used") == 1


def test_what_was_brought_is_counted(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """Also what came only to be checked; nothing is said to be brought that was not."""
    row = shop.elsewhere()
    image = composed(shop, row)
    came = [layer for spec, layer in shop.made() if not isinstance(spec, composition.CHEAP)]
    said = capsys.readouterr().err
    size = sum(layer.descriptor.size for layer in came)
    assert f"{len(came)} of them are here now: {size / 1e6:.1f} MB" in said
    assert f"no lock knows {len(came)} layers" in said
    assert "bring 0" not in said
    assert len(image.layers) > len(came)


def test_an_image_that_was_built_here_is_indexed_when_it_is_pushed(shop: Shop) -> None:
    """The same entries that `build --push` writes; of blobs that the row is not made of now nothing is known."""
    row, blobs = shop.row, [layer.descriptor for layer in shop.image.layers]
    found = composition.recalled(row.project, row.plan, row.lock, blobs)
    assert found is not None
    before = {name: data for name, data in shop.toy.manifests.items() if name.startswith("layer-")}
    for name in before:
        del shop.toy.manifests[name]
    with pushing(f"{shop.where}:one", row.project.store, environment=NOBODY) as pusher:
        composition.index(pusher.delivery.registry, *found, row.lock)
    assert {name: data for name, data in shop.toy.manifests.items() if name.startswith("layer-")} == before
    assert composition.recalled(row.project, row.plan, row.lock, blobs[:-1]) is None
    other = shop.elsewhere()
    assert composition.recalled(other.project, other.plan, other.lock, blobs) is None


def test_a_layer_that_holds_nothing_is_found_too(tmp_path: Path) -> None:
    """Bytecode of a wheel without modules: no image has it, and no lock; the wheel isn't fetched to find that out."""
    path = toys.make_wheel(tmp_path, "one", files={"one.pyi": "x: int\n"})
    own = homes.prepare(homes.Home(tmp_path / "own"))
    row = assembling.row(own, tmp_path, [toys.pin(path)], {"TORCHKILN_FIND_LINKS": str(tmp_path)})
    plan, image = row.assemble()
    assert len(plan.layers) < len(row.plan.layers)
    with (
        toyregistry.serving() as toy,
        pushing(f"{toy.host}/{REPOSITORY}:one", row.project.store, environment=NOBODY) as pusher,
    ):
        pusher.finish(image)
        composition.index(pusher.delivery.registry, plan, image, row.lock, composition.empty(row.project, row.plan))
        path.unlink()
        shop = Shop(toy=toy, row=row, plan=plan, image=image, root=tmp_path)
        other = shop.elsewhere()
        assert manifest_descriptor(composed(shop, other)) == manifest_descriptor(image)
        assert other.stages == {}


def test_a_stage_is_told_once(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """What others have measured is told by them."""
    row = shop.elsewhere(*NAMES)
    row.stages["compose"] = 2.1
    composed(shop, row)
    assert "compose: 2.1 s" not in capsys.readouterr().err


def test_where_all_is_here_nothing_is_asked_or_said(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """A build of what is cached is as quiet with a registry to compose from as without one."""
    row = shop.elsewhere()
    composed(shop, row, here=True)
    capsys.readouterr()
    asked = len(shop.toy.asked)
    composed(shop, row, here=True)
    assert (capsys.readouterr().err, len(shop.toy.asked)) == ("", asked)


def test_a_repository_without_any_layer_is_told(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """Its name may be another's: all is made here, which takes its time; the base, more than all, is there already."""
    shop.toy.manifests.clear()
    row = shop.elsewhere(*NAMES)
    assembling.make_base(row.project, row.base)
    composed(shop, row)
    said = capsys.readouterr().err
    assert "warning: none of them is there: they are made here; is it the right repository?" in said
    assert "0 of them" not in said


def test_a_compression_that_is_not_there_is_made_from_the_other(shop: Shop) -> None:
    """Layers come as gzip and become zstd here, none from its wheel; pushed and indexed, they are found as such."""
    shop.lock()
    row = replace(shop.elsewhere(), compression=Compression(kind="zstd", level=3))
    with lending(shop, row) as found:
        layers = composition.compose(row.project, row.plan, row.lock, found, here=False, frozen=True)
    assert layers == {}
    plan, image = row.assemble()
    assert set(row.stages) == {"compress"}
    assert [layer.diff_id for layer in image.layers] == [layer.diff_id for layer in shop.image.layers]
    with pushing(f"{shop.where}:zstd", row.project.store, environment=NOBODY) as pusher:
        pusher.finish(image)
        composition.index(pusher.delivery.registry, plan, image, row.lock)
    third = replace(shop.elsewhere(at="third"), compression=row.compression)
    assert manifest_descriptor(composed(shop, third)) == manifest_descriptor(image)
    assert set(third.stages) == {"compress"}  # of the small ones, that nobody is asked for
    assert not third.project.store.has(shop.image.layers[0].descriptor)


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("here", [False, True])
def test_an_image_in_zstd_is_composed_without_its_gzip(shop: Shop, *, here: bool, locked: bool) -> None:
    """Known or not: nothing is fetched, nothing converted, no gzip layer moves; the image is the same."""
    if locked:
        shop.lock()
    compression = Compression(kind="zstd", level=3)
    row = replace(shop.row, compression=compression)
    plan, image = row.assemble()
    with pushing(f"{shop.where}:zstd", row.project.store, environment=NOBODY) as pusher:
        pusher.finish(image)
        composition.index(pusher.delivery.registry, plan, image, row.lock)
    other = replace(shop.elsewhere(), compression=compression)
    assert manifest_descriptor(composed(shop, other, here=here)) == manifest_descriptor(image)
    assert set(other.stages) == {"compress"}  # of the small ones, that nobody is asked for
    large = [layer for spec, layer in shop.made() if not isinstance(spec, composition.CHEAP)]
    assert not any(other.project.store.has(layer.descriptor) for layer in large)


@pytest.mark.parametrize("kind", [WheelSpec, BytecodeSpec])
def test_what_is_not_there_is_made(shop: Shop, kind: type[LayerSpec]) -> None:
    """Of one wheel, which alone is fetched; the base is brought only where its interpreter has to compile."""
    shop.lock()
    missing, gone = next((spec, layer) for spec, layer in shop.made() if isinstance(spec, kind))
    del shop.toy.blobs[gone.descriptor.digest]
    row = shop.elsewhere(*NAMES)
    image = composed(shop, row)
    assert manifest_descriptor(image) == manifest_descriptor(shop.image)
    assert len(list(row.project.home.wheels.iterdir())) == 1
    assert row.project.store.has(image.layers[0].descriptor) == isinstance(missing, BytecodeSpec)
    assert {title for title in row.stages if title != "fetch"} == {
        "bytecode" if kind is BytecodeSpec else "wheels to layers"
    }


def test_wheels_that_nobody_has_compared_are_fetched_to_be_compared(shop: Shop) -> None:
    """Whether they go together is seen once, where they are pushed or here: their layers don't tell."""
    shop.lock()
    key = next(name for name in shop.toy.manifests if name.startswith("layer-together-"))
    del shop.toy.manifests[key]
    row = shop.elsewhere(*NAMES)
    assert manifest_descriptor(composed(shop, row)) == manifest_descriptor(shop.image)
    assert len(list(row.project.home.wheels.iterdir())) == len(NAMES)
    assert set(row.stages) == {"fetch"}


def test_an_index_that_cannot_be_written_is_told(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """The image is in the registry all the same."""
    shop.toy.faults["name"] = ["403"] * 99
    for name in [name for name in shop.toy.manifests if name.startswith("layer-")]:
        del shop.toy.manifests[name]
    with pushing(f"{shop.toy.host}/{REPOSITORY}:one", shop.row.project.store, environment=NOBODY) as pusher:
        composition.index(pusher.delivery.registry, shop.plan, shop.image, shop.row.lock)
    assert "not the index of its layers" in capsys.readouterr().err
