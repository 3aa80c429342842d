"""Assembly: what overlaps, what is held against what, and that no way of getting there changes the image."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import assembling, loopback, toyregistry, toys
from tests.assembling import BASE, OTHER, PYTHON
from tests.kiln import ROOT
from torchkiln import assembly
from torchkiln.assembly import ledger, together
from torchkiln.assembly.arrival import Arrivals
from torchkiln.assembly.stages import Stages
from torchkiln.errors import ConflictError, HashMismatchError, LayerMismatchError, LockError
from torchkiln.layers.archive import Entry, write_layer
from torchkiln.lock import layerlock, lockfile
from torchkiln.oci import digest as digests
from torchkiln.oci import layerindex, zstd
from torchkiln.oci.image import Config, manifest_descriptor
from torchkiln.oci.push import pushing
from torchkiln.oci.store import Store
from torchkiln.plan import ImagePlan
from torchkiln.specs import BaseSpec, BytecodeSpec, WheelSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.assembling import Row
    from tests.loopback import Index
    from torchkiln.home import Home
    from torchkiln.oci.image import Layer
    from torchkiln.specs import LayerSpec


@pytest.fixture
def index() -> Iterator[Index]:
    """A package index on this machine."""
    with loopback.serve() as served:
        yield served


def of_disk(home: Home, root: Path, *wheels: Path, base: BaseSpec = BASE) -> Row:
    """A row whose wheels lie in a folder."""
    return assembling.row(
        home, root, [toys.pin(path) for path in wheels], {"TORCHKILN_FIND_LINKS": str(root)}, base=base
    )


def test_a_layer_that_holds_nothing_is_left_out(tmp_path: Path) -> None:
    """A wheel of type stubs has no module to compile: its bytecode is no layer, and the plan says so too.

    Titles get into the config: they are the plan's, whatever a cache or a registry calls the layers.
    """
    store = Store(tmp_path)
    pin = lockfile.Pin(name="types-toy", version="1", sha256="0" * 64, filename="types_toy-1-py3-none-any.whl", size=9)
    plan = ImagePlan(
        target="row",
        layers=(BASE, WheelSpec(pins=(pin,)), BytecodeSpec(pins=(pin,), python=PYTHON)),
        config=Config(),
    )
    full = [
        write_layer(store, name, [(Entry(path=name, kind="directory", mode=0o755), None)]) for name in ("base", "wheel")
    ]
    kept, image = assembly.put_together(plan, [*full, write_layer(store, "bytecode", [])])
    assert [layer.title for layer in image.layers] == ["base toys", "types-toy 1"]
    assert kept.layers == plan.layers[:2]


def test_no_layer_waits_for_wheels_that_are_not_in_it(home: Home, tmp_path: Path, index: Index) -> None:
    """The index withholds a wheel until all that needs only the other one is made and handed on, bytecode too."""
    one, two = index.add("one", "1.0"), index.add("two", "1.0", requires=("one",))
    index.gates[two.filename] = threading.Event()
    row = assembling.row(home, tmp_path, [one, two], index.environment(tmp_path))
    handed: list[str] = []

    def made(spec: LayerSpec, layer: Layer) -> None:
        assert row.project.store.has(layer.descriptor)
        handed.append(spec.title)
        if set(handed) == {spec.title for spec in row.plan.layers if "two" not in spec.title}:
            assert not home.wheel(two.sha256, two.filename).exists()
            index.gates[two.filename].set()

    plan, image = row.assemble(made)
    assert set(handed[-2:]) == {"two 1.0", "bytecode of two 1.0"}
    assert sorted(handed) == sorted(spec.title for spec in plan.layers)
    assert [layer.title for layer in image.layers] == [spec.title for spec in row.plan.layers]
    assert {"fetch", "wheels to layers", "bytecode"} <= row.stages.keys()


def test_a_wheel_may_come_twice_at_once(home: Home, tmp_path: Path) -> None:
    """Fetched for two who need it, each with others: whoever is second finds it there already, at whatever instant."""

    class Late(Future[Path]):
        """One that comes right after it was asked whether it has."""

        def done(self) -> bool:
            return False

    row = of_disk(home, tmp_path, toys.make_wheel(tmp_path, "one"))
    (pin,) = row.lock.pins
    coming = Late()
    wheels = Arrivals(project=row.project, lock=row.lock, stages=Stages(seconds={}), coming={pin.sha256: coming})
    for _ in range(2):
        wheels.run()
    assert coming.result() == wheels.of([pin])[pin.sha256] == home.wheel(pin.sha256, pin.filename)


def test_a_layer_is_in_the_registry_before_the_last_wheel_is_here(home: Home, tmp_path: Path, index: Index) -> None:
    """The index withholds a wheel until the registry has what the other became; the image is named when it is whole."""
    one, two = index.add("one", "1.0"), index.add("two", "1.0")
    index.gates[two.filename] = threading.Event()
    row = assembling.row(home, tmp_path, [one, two], index.environment(tmp_path))
    early = WheelSpec(pins=(one,))

    def watch(digest: str) -> None:
        while digest not in registry.blobs:
            time.sleep(0.01)
        index.gates[two.filename].set()

    with (
        toyregistry.serving() as registry,
        pushing(f"{registry.host}/{toyregistry.REPOSITORY}:row", row.project.store, environment={}) as to,
    ):

        def made(spec: LayerSpec, layer: Layer) -> None:
            to.offer(layer)
            if spec.key == early.key:
                threading.Thread(target=watch, args=(layer.descriptor.digest,), daemon=True).start()

        _, image = row.assemble(made)
        assert not registry.manifests
        pushed = to.finish(image)
        assert pushed.digest == manifest_descriptor(image).digest


def test_what_is_handed_on_may_end_the_build(home: Home, tmp_path: Path, index: Index) -> None:
    """Such as a registry that refuses a layer: what was made stays made, and the next build goes on from there."""
    pins = [index.add("one", "1.0"), index.add("two", "1.0")]
    index.gates[pins[1].filename] = threading.Event()
    row = assembling.row(home, tmp_path, pins, index.environment(tmp_path))

    def made(spec: LayerSpec, _layer: Layer) -> None:
        if isinstance(spec, WheelSpec):
            index.gates[pins[1].filename].set()
            raise ConnectionRefusedError(spec.title)

    with pytest.raises(ConnectionRefusedError, match="one"):
        row.assemble(made)
    assert home.lookup(WheelSpec(pins=(pins[0],)).key) is not None
    whole = manifest_descriptor(row.assemble()[1])
    assert whole == manifest_descriptor(other_home(row, tmp_path).assemble()[1])


def other_home(row: Row, tmp_path: Path) -> Row:
    """The same row with an empty cache."""
    from torchkiln import home as homes  # noqa: PLC0415

    fresh = homes.prepare(homes.Home(tmp_path / "fresh"))
    return assembling.row(fresh, row.project.root, row.lock.pins, row.project.environment, base=row.base)


def test_a_pin_deleted_from_a_lock_is_noticed_before_there_is_an_image(home: Home, tmp_path: Path) -> None:
    """What the wheels themselves ask for is held against the pins, for the base's exact Python."""
    one = toys.make_wheel(tmp_path, "one", requires=(f"two>=1; python_full_version == '{PYTHON}'", "six; extra == 'x'"))
    two = toys.make_wheel(tmp_path, "two")
    of_disk(home, tmp_path, one, two).assemble()
    for _ in range(2):  # a lock that was refused is not remembered as a good one
        with pytest.raises(LockError) as raised:
            of_disk(home, tmp_path, one).assemble()
        assert "one needs two>=1, and no two is pinned" in raised.value.what
        assert raised.value.remedy == "./inv lock --target row"


def test_wheels_that_go_together_on_one_python_are_asked_again_on_another(home: Home, tmp_path: Path) -> None:
    """Rows share a lock for each minor; bases have their own patch release, and markers may name it."""
    one = toys.make_wheel(tmp_path, "one", requires=(f"two; python_full_version == '{OTHER}'",))
    of_disk(home, tmp_path, one).assemble()
    newer = assembling.holding(OTHER)
    with pytest.raises(LockError, match="no two is pinned"):
        of_disk(home, tmp_path, one, base=newer).assemble()


def test_what_was_found_to_go_together_is_named_by_all_that_was_compared(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheels, the base's Python, where files of wheels lie in layers, and the rule itself."""
    one, two = toys.make_wheel(tmp_path, "one"), toys.make_wheel(tmp_path, "two")
    row, more = of_disk(home, tmp_path, one), of_disk(home, tmp_path, one, two)
    newer = of_disk(home, tmp_path, one, base=assembling.holding(OTHER))
    keys = [together.key(each.plan, each.lock) for each in (row, more, newer)]
    for where, what in ((together, "RULE"), (WheelSpec, "FORMAT")):
        with monkeypatch.context() as patch:
            patch.setattr(where, what, getattr(where, what) + 1)
            keys.append(together.key(row.plan, row.lock))
    assert len(set(keys)) == len(keys)
    assert together.key(row.plan, row.lock) == keys[0]
    assert all(layerindex.tag(key) for key in keys)


def test_wheels_that_write_one_file_are_refused(home: Home, tmp_path: Path) -> None:
    """Each of them is a good layer by itself; there is no image of both."""
    both = [toys.make_wheel(tmp_path, name, files={"same.py": f"{name} = 1\n"}) for name in ("one", "two")]
    with pytest.raises(ConflictError, match=r"same\.py"):
        of_disk(home, tmp_path, *both).assemble()


def test_the_archive_may_move_on(home: Home, tmp_path: Path) -> None:
    """What the base holds now has a key of its own, and its bytecode that of its Python: no locked layer is missed."""
    old = assembling.holding(OTHER)
    row = of_disk(home, tmp_path, toys.make_wheel(tmp_path, "one"), base=old)
    planned = row.plan
    packages = assembling.holding(PYTHON).lock.packages
    layer = assembling.make_base(row.project, old, packages=packages)
    row.project.layer_lock.parent.mkdir(parents=True)
    locked_then = replace(layer, diff_id=layer.descriptor.digest)
    compiled = next(spec for spec in planned.layers if isinstance(spec, BytecodeSpec))
    row.project.layer_lock.write_text(layerlock.render({old.key: locked_then, compiled.key: locked_then}))
    plan, image = row.assemble()
    assert image.layers[0] == layer
    keys = {spec.key for spec in plan.layers}
    assert not keys & {old.key, compiled.key}
    assert {spec.python for spec in plan.layers if isinstance(spec, BytecodeSpec)} == {PYTHON}
    assert assembling.holding(PYTHON).key in keys


def test_bytecode_of_another_patch_release_is_not_taken_for_the_bases(home: Home, tmp_path: Path) -> None:
    """Where a base's Python does not start here: what compiled is told, in keys too, and what is locked is held to."""
    row = of_disk(home, tmp_path, toys.make_wheel(tmp_path, "one"), base=assembling.holding(OTHER))
    planned = next(spec for spec in row.plan.layers if isinstance(spec, BytecodeSpec))
    for verify in (False, False, True):
        plan, image = row.assemble(verify=verify)
        made = dict(zip(plan.layers, image.layers, strict=True))
        assert planned not in made
        assert home.lookup(planned.key) is None
        assert home.lookup(replace(planned, python=PYTHON).key) is not None
    row.project.layer_lock.parent.mkdir(parents=True)
    same = made[replace(planned, python=PYTHON)]
    row.project.layer_lock.write_text(layerlock.render({planned.key: same}))
    row.assemble()
    row.project.layer_lock.write_text(layerlock.render({planned.key: image.layers[0]}))
    with pytest.raises(LayerMismatchError, match=f"bytecode by Python {re.escape(PYTHON)},") as raised:
        row.assemble()
    assert planned.key in raised.value.where


def locked(row: Row) -> dict[str, Layer]:
    """Build the row in a cache of its own and lock what it is made of."""
    plan, image = row.assemble()
    layers = {spec.key: layer for spec, layer in zip(plan.layers, image.layers, strict=True)}
    row.project.layer_lock.parent.mkdir(parents=True, exist_ok=True)
    row.project.layer_lock.write_text(layerlock.render(layers))
    return layers


def test_known_layers_give_the_same_image(home: Home, tmp_path: Path) -> None:
    """With their lock or without, found, made anew, or made anew and checked in the slow way."""
    row = of_disk(home, tmp_path, toys.make_wheel(tmp_path, "one"))
    before = manifest_descriptor(row.assemble()[1])
    locked(row)
    assert manifest_descriptor(row.assemble()[1]) == before
    assert manifest_descriptor(other_home(row, tmp_path).assemble()[1]) == before
    assert manifest_descriptor(row.assemble(verify=True)[1]) == before


def test_verify_makes_all_anew(home: Home, tmp_path: Path) -> None:
    """What is in the cache, or lies elsewhere, is made once more: every wheel and all bytecode."""
    row = of_disk(home, tmp_path, toys.make_wheel(tmp_path, "one"))
    remote = {spec.key: layer for spec, layer in zip(row.plan.layers, row.assemble()[1].layers, strict=True)}
    row.stages.clear()
    row.assemble(remote=remote)
    assert row.stages == {}
    blobs = {path.name: path.stat().st_ino for path in row.project.store.blobs.iterdir()}
    row.assemble(verify=True, remote=remote)
    assert {"wheels to layers", "bytecode"} <= row.stages.keys()
    kept = {path.name for path in row.project.store.blobs.iterdir() if path.stat().st_ino == blobs[path.name]}
    assert kept == {digests.encoded(remote[row.base.key].descriptor.digest)}


def test_verify_believes_nothing_of_a_known_layer(home: Home, tmp_path: Path) -> None:
    """The lock has the blob right and its tar wrong: who inflates it can tell, and without --verify nobody does."""
    row = of_disk(home, tmp_path, toys.make_wheel(tmp_path, "one"))
    layers = locked(row)
    wheel = next(spec for spec in row.plan.layers if isinstance(spec, WheelSpec))
    wrong = replace(layers[wheel.key], diff_id=digests.of_bytes(b"another tar"))
    row.project.layer_lock.write_text(layerlock.render({**layers, wheel.key: wrong}))
    assert other_home(row, tmp_path).assemble()[1].layers[1] == wrong
    with pytest.raises(LayerMismatchError, match=f"diff_id {layers[wheel.key].diff_id} instead of {wrong.diff_id}"):
        row.assemble(verify=True)


def test_versions_are_reckoned_only_to_be_told(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which packages are there differs from Python to Python: a build whose layers are right asks for none."""

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    row = of_disk(home, tmp_path, toys.make_wheel(tmp_path, "one"))
    locked(row)
    monkeypatch.setattr(ledger, "version", absent)
    row.assemble(verify=True)
    conditional = re.findall(r"^([\w.-]+)[^#\n]*;", (ROOT / "requirements.in").read_text(), re.MULTILINE)
    assert "backports.zstd" in conditional
    assert not set(ledger.TOOLS) & set(conditional)
    monkeypatch.undo()
    assert f"libzstd {zstd.VERSION}" in ledger.versions(row.base)


@pytest.mark.parametrize("kind", [WheelSpec, BytecodeSpec, BaseSpec])
@pytest.mark.parametrize("verify", [False, True])
def test_a_layer_that_is_not_the_locked_one_is_an_error(
    home: Home, tmp_path: Path, kind: type[LayerSpec], *, verify: bool
) -> None:
    """Whether it was made just now or is in the cache: it names layer and versions, and is not remembered."""
    row = of_disk(home, tmp_path, toys.make_wheel(tmp_path, "one"))
    layers = locked(row)
    wrong = next(spec for spec in row.plan.layers if isinstance(spec, kind))
    other = next(layer for key, layer in layers.items() if key != wrong.key)
    row.project.layer_lock.write_text(layerlock.render({**layers, wrong.key: replace(other, title=wrong.title)}))
    (line,) = [line for line in row.project.layer_lock.read_text().splitlines() if line.startswith(wrong.key)]
    for tried in (row, other_home(row, tmp_path)):
        with pytest.raises(LayerMismatchError) as raised:
            tried.assemble(verify=verify)
        said = str(raised.value)
        assert wrong.title in said
        assert wrong.key in said
        assert f"layer format {wrong.FORMAT}" in said
        assert other.descriptor.digest in said
        number = 1 + row.project.layer_lock.read_text().splitlines().index(line)
        assert raised.value.where.startswith(f"images/locks/layers.lock:{number}, {wrong.key}")
        assert "delete the line" in raised.value.remedy
    if kind is not BaseSpec:
        assert tried.project.home.lookup(wrong.key) is None


def test_a_damaged_wheel_is_told_from_a_wrong_lock(home: Home, tmp_path: Path) -> None:
    """Known layers are made without inflating: a wheel that changed on this disk makes another, and is thrown out."""
    row = of_disk(home, tmp_path, toys.make_wheel(tmp_path, "one", files={"one.py": f"x = {'1' * 500}\n"}))
    locked(row)
    fresh = other_home(row, tmp_path)
    (pin,) = row.lock.pins
    copy = fresh.project.home.wheel(pin.sha256, pin.filename)
    copy.parent.mkdir(parents=True)
    data = bytearray((tmp_path / pin.filename).read_bytes())
    data[data.index(b"one.py") + 12] ^= 1
    copy.write_bytes(data)
    with pytest.raises(HashMismatchError, match="changed on this disk"):
        fresh.assemble()
    assert not copy.exists()
    fresh.assemble()


def test_what_lies_elsewhere_is_not_made(home: Home, tmp_path: Path) -> None:
    """Layers that a registry has are handed on as they are: no wheel is fetched, no base made, no blob stored."""
    row = of_disk(home, tmp_path, toys.make_wheel(tmp_path, "one"))
    plan, image = row.assemble()
    remote = {spec.key: layer for spec, layer in zip(plan.layers, image.layers, strict=True)}
    compared = {path.name: path.read_bytes() for path in home.index.glob("together-*")}
    fresh = other_home(row, tmp_path)
    for path in [*fresh.project.home.index.iterdir(), *fresh.project.store.blobs.iterdir()]:
        path.unlink()
    for name, data in compared.items():
        (fresh.project.home.index / name).write_bytes(data)
    handed: list[Layer] = []
    composed = replace(fresh, lock=fresh.lock).assemble(lambda _, layer: handed.append(layer), remote=remote)[1]
    assert manifest_descriptor(composed) == manifest_descriptor(image)
    assert {layer.descriptor.digest for layer in handed} == {layer.descriptor.digest for layer in image.layers}
    assert list(fresh.project.store.blobs.iterdir()) == []
    assert list(fresh.project.home.wheels.iterdir()) == []
