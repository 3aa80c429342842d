"""What the whole story does before it begins."""

from __future__ import annotations

import json
import re
import socket
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests import assembling, loopback, toyregistry
from tests.kiln import ROOT
from torchkiln import finished, layerlocking, locking, pipeline, planning, transfer
from torchkiln import home as homes
from torchkiln.assembly import bases, claims
from torchkiln.errors import FetchError, HashMismatchError, LockError, PushError, VerifyError
from torchkiln.home import Home
from torchkiln.layers import boundaries, boundarylock, pool
from torchkiln.layers.archive import Entry, write_layer
from torchkiln.layers.base import table as userlands
from torchkiln.layers.inflate import Boundary
from torchkiln.lock import layeraudit, layerlock, lockfile, rows
from torchkiln.lock.lockfile import Inputs, Pin
from torchkiln.lock.renew import Renewed
from torchkiln.lock.sections import LockFile
from torchkiln.matrix import schema
from torchkiln.matrix.publishing import PublishTarget
from torchkiln.matrix.target import Extra, publishing
from torchkiln.oci import digest as digests
from torchkiln.oci import layerindex, session
from torchkiln.oci.compression import Compression
from torchkiln.oci.image import REF_NAME, manifest_descriptor, recorded
from torchkiln.pipeline import Wishes
from torchkiln.project import Project
from torchkiln.specs import BaseSpec, WheelSpec
from torchkiln.validation import ValidationReport

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.loopback import Index
    from torchkiln.layers.base import BaseResult
    from torchkiln.validation.report import Verdict

MATRIX = schema.load(ROOT / "matrix.yaml")


@pytest.mark.parametrize("filename", ["one-1-1/../../x-py3-none-any.whl", "one-1-1\nsix==1-py3-none-any.whl"])
def test_nothing_is_written_that_is_no_lock(tmp_path: Path, filename: str) -> None:
    """An index may give a file any name; the lock files beside the one that can't hold it stay as they are, too."""
    good, bad = (
        Pin(name="one", version="1", sha256="0" * 64, filename=name, size=1)
        for name in ("one-1-py3-none-any.whl", filename)
    )
    made = [LockFile(common=lockfile.make(Inputs(python="3.11"), [pin], "uv")) for pin in (good, bad)]
    renewed = [
        Renewed(path=tmp_path / f"{number}.txt", before=LockFile(), after=file) for number, file in enumerate(made)
    ]
    with pytest.raises(LockError, match="is not a pin"):
        locking._written(renewed)
    assert list(tmp_path.iterdir()) == []
    assert locking._written(renewed[:1])


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """This checkout with an empty cache."""
    return Project(root=ROOT, home=homes.prepare(Home(tmp_path / "home")), environment={})


PLAIN = next(row for row in MATRIX.targets if row.id == "torch25-cu124")


SMALL = schema.load(ROOT / "tests" / "matrix" / "small.yaml").targets
GOOD, *LACKING = [
    replace(row, release=replace(row.release, torchvision="", torchaudio="", companions=("setuptools", "numpy<2.3")))
    for row in SMALL
    if row.id in {"torch25-cu124", "torch26-cu124", "torch28-cu128"}
]


@pytest.fixture
def index() -> Iterator[Index]:
    """An index on this machine that has the torch of one row in three."""
    with loopback.serve() as served:
        served.add("torch", "2.5.1", "cp311-cp311-manylinux1_x86_64")
        served.add("setuptools", "70.0")
        served.add("numpy", "2.2.6")
        yield served


@pytest.fixture
def checkout(project: Project, index: Index, tmp_path: Path) -> Project:
    """A checkout without locks, whose index is on this machine."""
    (tmp_path / "checkout" / "images" / "locks").mkdir(parents=True)
    return replace(project, root=tmp_path / "checkout", environment=index.environment(tmp_path))


def test_a_row_that_cannot_be_locked_stops_no_other(checkout: Project) -> None:
    """What could be written is; then there is one error that names each row that has no lock now, and why."""
    family = [LACKING[0], GOOD, LACKING[1]]
    made = locking.relock(checkout, family, every=family)
    assert [path.name for path in checkout.locks.iterdir()] == [GOOD.lock_name]
    assert [part.file for part in made.changed] == [GOOD.lock_name]
    with pytest.raises(LockError) as raised:
        made.refuse()
    assert raised.value.what.startswith("2 of 3 lock files could not be written:\n  torch26-cu124: ")
    assert "\n  torch28-cu128: " in raised.value.what
    alone = locking.relock(checkout, LACKING[:1], every=family)
    with pytest.raises(LockError, match=r"^uv cannot resolve it"):
        alone.refuse()


def test_wheels_that_are_locked_are_not_asked_for_again_with_a_base(
    checkout: Project, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package list can be written where no index is in reach; a stale lock, and an upgrade, ask all the same."""
    row = GOOD
    locking.relock(checkout, [row], every=[row]).refuse()
    listed = rows.packages(ROOT / "images" / "locks", PLAIN)
    monkeypatch.setattr(userlands, "lock", lambda *_: listed)  # the real one needs root and an archive
    index.down.add("simple")
    made = locking.relock(checkout, [row], every=[row], bases=True)
    made.refuse()
    assert made.changed == ()
    assert checkout.base_lock(row).exists()
    stale = replace(row, release=replace(row.release, companions=("setuptools", "numpy<2.2")))
    for chosen, upgrade in ((stale, False), (row, True)):
        with pytest.raises(LockError, match="uv cannot resolve it"):
            locking.relock(checkout, [chosen], every=[chosen], bases=True, upgrade=upgrade).refuse()


@pytest.fixture
def ready(checkout: Project) -> Project:
    """A checkout whose one row is locked, and whose base is in the cache."""
    (checkout.root / "validate").symlink_to(ROOT / "validate")
    locking.relock(checkout, [GOOD], every=[GOOD]).refuse()
    lock = (ROOT / "images" / "locks" / GOOD.base_lock_name).read_text()
    compiles = rf"\g<1>{assembling.PYTHON}"  # in its place: the base of toys has no Python
    (checkout.locks / GOOD.base_lock_name).write_text(re.sub(r"(?m)^(libpython3\.11-minimal=)[\d.]+", compiles, lock))
    (base,) = [spec for spec in planning.planned(checkout, GOOD).layers if isinstance(spec, BaseSpec)]
    assembling.make_base(checkout, base)
    return checkout


def test_layers_are_locked_by_building_them(ready: Project, tmp_path: Path) -> None:
    """What is made of locked things alone, empty layers too; other lines stay, nothing that is there is replaced."""
    other = "wheel-" + "0" * 64
    new = layerlocking.lock_layers(ready, [GOOD])
    text = ready.layer_lock.read_text()
    kept = next(iter(new.values()))
    ready.layer_lock.write_text(layerlock.render({**layerlock.parse(text), other: kept}))
    assert layerlock.parse(text) == new
    assert {key.partition("-")[0] for key in new} == {"base", "wheel", "bytecode"}
    planned = {spec.key for spec in planning.planned(ready, GOOD).layers if isinstance(spec, layerlocking.LOCKED)}
    assert new.keys() == planned
    fresh = replace(ready, home=homes.prepare(Home(tmp_path / "fresh")))
    (base,) = [spec for spec in planning.planned(ready, GOOD).layers if isinstance(spec, BaseSpec)]
    assembling.make_base(fresh, base)
    assert layerlocking.lock_layers(fresh, [GOOD]) == {}
    assert layerlock.read(ready.layer_lock) == {**new, other: kept}


def test_verify_reaches_the_makers(ready: Project) -> None:
    """A build of what is cached makes nothing; with --verify everything is made anew, to the same image."""
    wheels = {"wheels to layers", "bytecode"}
    first, second, third = (pipeline.build(ready, GOOD, None, Wishes(verify=verify)) for verify in (False, False, True))
    assert (first.stages.keys() & wheels, second.stages.keys() & wheels) == (wheels, set())
    assert third.stages.keys() & wheels == wheels
    assert first.digest == second.digest == third.digest


def test_what_only_a_registry_says_is_made_here_before_it_is_locked(
    ready: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write to its index names other layers: a build takes them, no lock does; the base is remade too."""
    other = replace(ready, home=homes.prepare(Home(tmp_path / "other")))
    planned = planning.planned(ready, GOOD)
    rebuilt: list[str] = []

    def userland(project: Project, specs: Any, *, frozen: bool) -> BaseResult:  # noqa: ANN401  as the real one has it
        (base,) = specs
        if recorded(project.home.lookup(base.key)) is None:  # the real one needs an archive
            rebuilt.append(base.key)
            assembling.make_base(project, base)
        return table_build(project, specs, frozen=frozen)

    table_build = userlands.build
    with toyregistry.serving() as registry:
        place = f"{registry.host}/{toyregistry.REPOSITORY}"
        good = pipeline.build(ready, GOOD, None, Wishes(push=f"{place}:one"))
        bad = write_layer(ready.store, "bad", [(Entry(path="bad", kind="directory", mode=0o755), None)])
        registry.blobs[bad.descriptor.digest] = ready.store.read(bad.descriptor.digest)
        for spec in planned.layers:
            if isinstance(spec, WheelSpec):
                registry.manifests[f"layer-{spec.key}"] = ("", layerindex.entry(spec.key, bad))
        taken = pipeline.build(other, GOOD, None, Wishes(origin=place))
    assert taken.digest == pipeline.build(other, GOOD, None).digest != good.digest
    monkeypatch.setattr(userlands, "build", userland)
    monkeypatch.setattr(pool, "beside", lambda function, *given: nullcontext(bases.once(partial(function, *given))))
    new = layerlocking.lock_layers(other, [GOOD])
    made = {spec.key: layer for spec, layer in good.made}
    assert rebuilt == [spec.key for spec in planned.layers if isinstance(spec, BaseSpec)]
    assert new == {key: made[key] for key in layerlocking.locked_keys(planned)}
    assert claims.among(other.home, new) == []


def test_lines_that_no_row_plans_go_with_the_next_that_are_written(
    ready: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of an old format, say; an audit finds them, and a row that lost a line, and nothing once all is well."""
    only_good = replace(schema.load(ROOT / "tests" / "matrix" / "small.yaml"), targets=(GOOD,))
    monkeypatch.setattr(Project, "family", lambda _: only_good)
    new = layerlocking.lock_layers(ready, [GOOD])
    assert layerlocking.audit_layers(ready, [GOOD]) == layeraudit.Findings(whole=(GOOD.id,))
    lost = next(iter(new))
    old = {key: layer for key, layer in new.items() if key != lost} | {"base-" + "0" * 64: new[lost]}
    ready.layer_lock.write_text(layerlock.render(old))
    found = layerlocking.audit_layers(ready, [GOOD])
    assert [key for key, _ in found.stale] == ["base-" + "0" * 64]
    assert [part.row for part in found.parts] == [GOOD.id]
    assert layerlocking.lock_layers(ready, [GOOD]) == {lost: new[lost]}
    assert layerlock.read(ready.layer_lock) == new


def test_layers_are_not_audited_while_a_lock_is_stale_which_is_told(
    ready: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody knows then which lines are its row's: that lock is to be mended first, and it is named."""
    layerlocking.lock_layers(ready, [GOOD])
    other = replace(GOOD, release=replace(GOOD.release, companions=("setuptools",)))
    capsys.readouterr()
    assert layerlocking.audit_layers(ready, [other]) == layeraudit.Findings()
    assert f"first mend the locks of {other.id}" in capsys.readouterr().err


def test_layers_of_a_users_own_additions_are_not_noted(
    ready: Project, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No row plans them, so a check without the list would call their lines stale; the row's own are noted."""
    only_good = replace(schema.load(ROOT / "tests" / "matrix" / "small.yaml"), targets=(GOOD,))
    monkeypatch.setattr(Project, "family", lambda _: only_good)
    index.add("mine", "1.0")
    (tmp_path / "app.txt").write_text("mine\n")
    more = replace(GOOD, extra=Extra(id="app", requirements=("mine",), file=tmp_path / "app.txt"))
    locking.relock(ready, [more], every=[GOOD]).refuse()
    new = layerlocking.lock_layers(ready, [more])
    assert "additions: bytecode of mine 1.0, mine 1.0" in capsys.readouterr().err
    assert new.keys() == layerlocking.locked_keys(planning.planned(ready, GOOD))
    for rows_ in ([GOOD], [GOOD, more]):
        layeraudit.refuse(layerlocking.audit_layers(ready, rows_))
    assert layerlocking.lock_layers(ready, [GOOD]) == {}


def test_boundaries_are_locked_with_the_layers(ready: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that has never seen the wheels is given them; a wheel that no row has any more loses its line."""
    only_good = replace(schema.load(ROOT / "tests" / "matrix" / "small.yaml"), targets=(GOOD,))
    monkeypatch.setattr(Project, "family", lambda _: only_good)
    ready.boundary_lock.write_text(boundarylock.render({"0" * 64: {1: Boundary(2, 3)}}))
    pin, *_ = planning.locked(ready, GOOD)[0].pins
    large = {1: Boundary(boundarylock.LARGE * 8, 3)}  # what these small wheels do not have
    boundaries.write(ready.home.boundaries, pin.sha256, large)
    layerlocking.lock_layers(ready, [GOOD])
    assert boundarylock.read(ready.boundary_lock) == {pin.sha256: large}
    fresh = replace(ready, home=homes.prepare(Home(tmp_path / "fresh")))
    (base,) = [spec for spec in planning.planned(ready, GOOD).layers if isinstance(spec, BaseSpec)]
    assembling.make_base(fresh, base)
    pipeline.build(fresh, GOOD, None)
    assert boundaries.read(fresh.home.boundaries, pin.sha256) == large


def test_a_base_that_is_not_what_its_lock_says_is_not_noted(ready: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """The archive has moved on: everything else is as planned, and nobody would find that line again."""
    (base,) = [spec for spec in planning.planned(ready, GOOD).layers if isinstance(spec, BaseSpec)]
    assembling.make_base(ready, base, packages=[*base.lock.packages, ("newcomer", "1")])
    new = layerlocking.lock_layers(ready, [GOOD])
    assert {key.partition("-")[0] for key in new} == {"wheel", "bytecode"}
    assert "not noted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verdict", "require_pass", "named"),
    [("pass", True, True), ("incomplete", False, True), ("incomplete", True, False), ("fail", False, False)],
)
def test_the_tag_is_set_when_no_check_failed(
    ready: Project, monkeypatch: pytest.MonkeyPatch, verdict: Verdict, *, require_pass: bool, named: bool
) -> None:
    """Layers are sent meanwhile; an image that failed has no name in the registry, and is here all the same."""
    report = ValidationReport(target=GOOD.id, digest="", engine="toys", host={}, checks=(), verdict=verdict)
    monkeypatch.setattr(pipeline, "_validated", lambda *_: report)  # the real one needs an image that runs
    engine: Any = object()
    with toyregistry.serving() as registry:
        place = f"{registry.host}/{toyregistry.REPOSITORY}:row"
        built = pipeline.build(ready, GOOD, engine, Wishes(push=place, require_pass=require_pass))
        tags = {name for name in registry.manifests if name == "row"}
    assert ready.store.refs()[GOOD.ref].digest == built.digest
    assert (built.pushed is not None) is named
    assert tags == ({"row"} if named else set())
    assert built.report is report


@pytest.mark.parametrize("refusal", ["nobody", "no pushes", "no reads", "nobody to read from"])
def test_registries_are_asked_before_anything_is_made(
    ready: Project, index: Index, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """One that can't be had, or refuses, costs no wheel and no layer."""
    monkeypatch.setattr(session, "TRIES", 1)
    index.asked.clear()
    with toyregistry.serving() as registry, toyregistry.serving() as other, socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else takes it
        registry.faults["POST"] = ["403"] * (refusal == "no pushes")
        other.password = "word" * (refusal == "no reads")
        nobody, way = f"127.0.0.1:{held.getsockname()[1]}", toyregistry.REPOSITORY
        wishes = {
            "nobody": Wishes(push=f"{nobody}/{way}"),
            "no pushes": Wishes(push=f"{registry.host}/{way}"),
            "no reads": Wishes(push=f"{registry.host}/{way}", origin=f"{other.host}/{way}"),
            "nobody to read from": Wishes(origin=f"{nobody}/{way}"),
        }
        with pytest.raises((PushError, FetchError), match=r"refuses: 40[13]|can't be reached"):
            pipeline.build(ready, GOOD, None, wishes[refusal])
    assert index.asked == []
    assert not [path for path in ready.home.wheels.iterdir() if any(path.iterdir())]
    assert GOOD.ref not in ready.store.refs()


@pytest.mark.parametrize("kept", [False, True])
def test_what_is_known_to_be_damaged_there_is_sent_again(ready: Project, tmp_path: Path, *, kept: bool) -> None:
    """What composing found to be something else is made here and takes its place; if it does not, that is told."""
    other = replace(ready, home=homes.prepare(Home(tmp_path / "other")))
    with toyregistry.serving() as registry:
        place = f"{registry.host}/{toyregistry.REPOSITORY}"
        image = pipeline.build(ready, GOOD, None, Wishes(push=f"{place}:one")).image
        bad = next(layer.descriptor for layer in image.layers if layer.title.startswith("torch"))
        registry.blobs[bad.digest] = bytes(bad.size)
        registry.faults["PUT"] = ["kept"] * 99 * kept
        again = Wishes(push=f"{place}:two", origin=place)
        if kept:
            with pytest.raises(VerifyError, match=bad.digest) as raised:
                pipeline.build(other, GOOD, None, again)
            assert "its storage is damaged" in raised.value.remedy
            assert "two" not in registry.manifests  # nobody is led to it
            return
        built = pipeline.build(other, GOOD, None, again)
        assert built.pushed
        assert built.pushed.blobs[bad.digest] == "sent"
        assert digests.of_bytes(registry.blobs[bad.digest]) == bad.digest
        assert registry.manifests["two"] == registry.manifests["one"]


@pytest.mark.parametrize(("kept", "verify"), [(b"short", False), (b"other", True), (b"", False)])
def test_an_image_that_is_not_there_as_it_was_sent_gets_no_tag(ready: Project, kept: bytes, *, verify: bool) -> None:
    """Manifest and sizes are held against what was sent, with --verify every byte: by digest, before the tag is set."""
    image = pipeline.build(ready, GOOD, None).image
    blob = next(layer.descriptor for layer in image.layers if layer.title.startswith("torch"))
    with toyregistry.serving() as registry:
        if kept:
            registry.blobs[blob.digest] = kept if kept == b"short" else bytes(blob.size)
            registry.faults["PUT"] = ["kept"] * 99
        else:
            registry.faults["name"] = ["other"]
        wishes = Wishes(push=f"{registry.host}/{toyregistry.REPOSITORY}:one", verify=verify)
        with pytest.raises((VerifyError, HashMismatchError)) as raised:
            pipeline.build(ready, GOOD, None, wishes)
        assert (blob.digest in raised.value.what) is bool(kept)
        assert registry.host in raised.value.where
        assert "one" not in registry.manifests


def test_an_image_made_otherwise_keeps_its_name_wherever_it_goes(ready: Project, tmp_path: Path) -> None:
    """Beside the plain one, whose config it has and whose manifest says nothing: built, pushed, copied, pulled."""
    rows_ = [GOOD, publishing(GOOD, compression=Compression(kind="zstd", level=3))]
    rows_.append(publishing(GOOD, PublishTarget(id="near")))
    other = replace(ready, home=homes.prepare(Home(tmp_path / "other")))
    with toyregistry.serving() as registry, toyregistry.serving() as second:
        for row in rows_:
            place = f"{toyregistry.REPOSITORY}:{row.ref}"
            built = pipeline.build(ready, row, None, Wishes(push=f"{registry.host}/{place}"))
            assert built.pushed
            assert built.pushed.digest == built.digest == ready.store.refs()[row.ref].digest
            transfer.copy(ready, f"{registry.host}/{place}", f"{second.host}/{place}")
            got = transfer.pull(other, f"{second.host}/{place}")
            assert (got.name, got.digest) == (row.ref, built.digest)
            assert finished.verify(other, row) == ()
            with finished.subject(other, row) as subject:
                assert manifest_descriptor(subject.image).digest == subject.digest == built.digest
            stated = json.loads(ready.store.read(built.digest)).get("annotations")
            assert stated == ({REF_NAME: row.ref} if row.ref != row.id else None)
    assert {name: one.digest for name, one in other.store.refs().items()} == {
        row.ref: ready.store.refs()[row.ref].digest for row in rows_
    }
    assert len(set(other.store.refs())) == len(rows_)
