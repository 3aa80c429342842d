"""Images go to registries and come from them by name; what they are called here is never theirs alone to say."""

from __future__ import annotations

import fcntl
import inspect
import json
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import tasks
from tests import toyregistry
from tests.kiln import ROOT, Kiln
from tests.oci.test_push import LARGE
from tests.toyregistry import REPOSITORY, Toy, tar
from torchkiln import home as homes
from torchkiln import transfer
from torchkiln.commands.build import destinations
from torchkiln.errors import ImageError, StoreError, UsageError, VerifyError
from torchkiln.matrix import schema
from torchkiln.oci import digest as digests
from torchkiln.oci.image import PLAIN_TYPE, REF_NAME, Config, Image, Layer
from torchkiln.plan import ROW_LABEL
from torchkiln.project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torchkiln.home import Home

ROW = "torch213-cpu"
DATA = tar({"etc/one": b"1" * 5000})


@pytest.fixture
def toy() -> Iterator[Toy]:
    """A registry on loopback."""
    with toyregistry.serving() as found:
        yield found


@pytest.fixture
def work(home: Home) -> Project:
    """A checkout with an empty cache."""
    return Project(root=ROOT, home=home, environment={"NETRC": "/nonexistent"})


def made(work: Project, name: str = ROW, data: bytes = DATA) -> str:
    """An image of that name in the store; its digest."""
    blob = work.store.put(data, PLAIN_TYPE)
    layer = Layer(descriptor=blob, diff_id=digests.of_bytes(data), unpacked_size=len(data))
    image = Image(config=Config(labels={REF_NAME: name} if name else {}), layers=(layer,))
    return work.store.put_image(image, name or "nameless").digest


def row() -> Any:  # noqa: ANN401  a target
    """A row of the matrix."""
    (found,) = [row for row in schema.load(ROOT / "matrix.yaml").targets if row.id == ROW]
    return found


@pytest.mark.parametrize("whole", [False, True])
def test_what_was_pushed_comes_back_as_it_was(toy: Toy, work: Project, tmp_path: Path, *, whole: bool) -> None:
    """To the byte, by tag and by digest, under the name that it states; the manifest is the one that was built."""
    digest, place = made(work), f"{toy.host}/{REPOSITORY}"
    sent = transfer.push(work, row(), f"{place}:one", whole=whole)
    assert (sent.pushed.digest, sent.pushed.reference) == (digest, f"{place}@{digest}")
    assert sent.to_json()["verified"] == ("bytes" if whole else "sizes")
    assert json.loads(json.dumps(sent.to_json()))["blobs"].keys() == toy.blobs.keys()
    other = Project(root=work.root, home=type(work.home)(tmp_path / "other"), environment=work.environment)
    for name in (f"{place}:one", f"{place}@{digest}"):
        got = transfer.pull(other, name)
        assert (got.name, got.digest, got.reference) == (ROW, digest, f"{place}@{digest}")
    assert other.store.refs()[ROW].digest == digest
    assert {path.name for path in other.store.blobs.iterdir()} == {path.name for path in work.store.blobs.iterdir()}


def test_a_name_may_be_given_and_must_be_one(toy: Toy, work: Project) -> None:
    """An image that doesn't say what it is needs one; a name that leads elsewhere is none, whoever says it."""
    made(work)
    place = f"{toy.host}/{REPOSITORY}:one"
    transfer.push(work, row(), place)
    assert transfer.pull(work, place, name="mine").name == "mine"
    for name in ("../up", "a b", "-x", "x" * 300):
        with pytest.raises(ImageError, match="not a name"):
            transfer.pull(work, place, name=name)
    assert set(work.store.refs()) == {ROW, "mine"}
    with pytest.raises(ImageError, match="does not say which target"):
        transfer.pull(work, toy.at(toy.add(DATA)))
    with pytest.raises(ImageError, match="not a name"):
        transfer.pull(work, toy.at(toy.add(DATA, config={"config": {"Labels": {REF_NAME: "../../x"}}})))


def test_a_name_is_judged_before_anything_is_fetched(toy: Toy, work: Project) -> None:
    """One that was given before the registry is asked, one that the image states before any of its layers is."""
    stated = toy.at(toy.add(DATA, config={"config": {"Labels": {REF_NAME: "../../x"}}}))
    for source, name, told in ((stated, "x y", "not a name"), (stated, "", "not a name"), (None, "", "does not say")):
        toy.asked.clear()
        with pytest.raises(ImageError, match=told):
            transfer.pull(work, source or toy.at(toy.add(DATA)), name=name)
        assert bool(toy.asked) is not bool(name)
        layers = [json.loads(data)["layers"][0]["digest"] for _, data in toy.manifests.values()]
        assert not [path for path, _ in toy.asked if path.endswith(tuple(layers))]


def test_a_damaged_list_of_names_is_told_before_anything_is_fetched(toy: Toy, work: Project) -> None:
    """What could not be named in the end is not asked for."""
    work.store.root.mkdir(parents=True, exist_ok=True)
    (work.store.root / "index.json").write_text("{")
    with pytest.raises(StoreError, match=r"index\.json is not"):
        transfer.pull(work, toy.at(toy.add(DATA)), name="mine")
    assert toy.asked == []


def test_an_image_of_another_row_is_not_pushed_as_this_one(toy: Toy, work: Project) -> None:
    """It got the name by a pull: the error names both rows, and what is to be done."""
    stated = {"config": {"Labels": {ROW_LABEL: "torch214-cpu", REF_NAME: "torch214-cpu"}}}
    transfer.pull(work, toy.at(toy.add(DATA, config=stated)), name=ROW)
    toy.asked.clear()
    with pytest.raises(StoreError, match=f"{ROW} is an image of another row here: its label says torch214-cpu"):
        transfer.push(work, row(), f"{toy.host}/{REPOSITORY}:one")
    assert toy.asked == []


def test_a_name_of_the_manifest_goes_before_that_of_the_label(toy: Toy, work: Project) -> None:
    """It must be a name all the same."""
    made(work)
    stated = {"config": {"Labels": {REF_NAME: ROW}}}
    other = toy.add(DATA, config=stated, manifest={"annotations": {REF_NAME: f"{ROW}-zstd3"}})
    assert transfer.pull(work, toy.at(other)).name == f"{ROW}-zstd3"
    assert work.store.refs().keys() == {ROW, f"{ROW}-zstd3"}
    with pytest.raises(ImageError, match="not a name"):
        transfer.pull(work, toy.at(toy.add(DATA, config=stated, manifest={"annotations": {REF_NAME: "../x"}})))
    with pytest.raises(ImageError, match="not an image manifest"):
        transfer.pull(work, toy.at(toy.add(DATA, config=stated, manifest={"annotations": [REF_NAME]})))


def test_a_name_that_moves_is_told(toy: Toy, work: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """What was built under that name is not lost unnoticed."""
    before = made(work)
    other = toy.at(toy.add(DATA, config={"config": {"Labels": {REF_NAME: ROW}}}))
    transfer.pull(work, other)
    assert before in capsys.readouterr().err
    transfer.pull(work, other)
    assert "takes the place" not in capsys.readouterr().err


def test_an_image_is_copied_by_its_tag(toy: Toy, work: Project) -> None:
    """What the tag names when it begins; nothing of it stays in the store."""
    made(work)
    place = f"{toy.host}/{REPOSITORY}"
    transfer.push(work, row(), f"{place}:one")
    kept = sorted(path.name for path in work.store.blobs.iterdir())
    with toyregistry.serving() as other:
        sent = transfer.copy(work, f"{place}:one", f"{other.host}/{REPOSITORY}:two", whole=True)
        assert other.manifests["two"] == toy.manifests["one"]
        assert other.blobs == toy.blobs
        assert str(sent).startswith(f"{other.host}/{REPOSITORY}:two {sent.pushed.digest}: 2 sent, 0.0 MB; every byte")
    assert sorted(path.name for path in work.store.blobs.iterdir()) == kept


def test_nothing_is_collected_while_an_image_is_copied(toy: Toy, work: Project) -> None:
    """What is noted of uploads that may break off lies in the cache."""
    digest, lock = toy.add(DATA), work.home.locks / "use.lock"
    layer = json.loads(toy.manifests[digest][1])["layers"][0]["digest"]
    toy.faults[layer] = ["stall"]
    with toyregistry.serving() as other, ThreadPoolExecutor(1) as pool:
        done = pool.submit(transfer.copy, work, toy.at(digest), f"{other.host}/{REPOSITORY}:one")
        assert toy.stalled.wait(60)
        with lock.open() as handle:
            with pytest.raises(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            toy.stall.set()
            assert done.result().pushed.digest == digest
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_is_not_built_is_not_pushed(toy: Toy, work: Project) -> None:
    """The remedy is the command that builds it; several rows have no single place."""
    with pytest.raises(StoreError, match="is not built"):
        transfer.push(work, row(), f"{toy.host}/{REPOSITORY}:one")
    with pytest.raises(UsageError, match="one target at a time"):
        inspect.unwrap(tasks.push.body)(None, "x/y", ["torch28-*"], [])
    assert toy.asked == []


def test_tags_of_the_layer_index_name_no_image(toy: Toy, work: Project) -> None:
    """A push would write its index over its own image: refused before anything is asked or sent."""
    made(work)
    place = f"{toy.host}/{REPOSITORY}:layer-{'0' * 64}"
    for act in (
        lambda: transfer.push(work, row(), place),
        lambda: transfer.copy(work, f"{toy.host}/{REPOSITORY}:one", place),
        lambda: destinations(place, [row()]),
    ):
        with pytest.raises(ImageError, match="index of layers") as raised:
            act()
        assert raised.value.remedy == f"{toy.host}/{REPOSITORY} with another tag"
    assert toy.asked == []


def test_ctrl_c_ends_a_push_at_once(toy: Toy, work: Project) -> None:
    """Whatever the registry is about; the next one goes on where this one was."""
    digest = made(work, data=LARGE)
    toy.faults["PATCH"] = ["stall"]
    where = ("push", f"{toy.host}/{REPOSITORY}:one", "--target", ROW)
    with Kiln(work.home.root).start(*where, env=work.environment) as process:
        assert toy.stalled.wait(60)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert (process.returncode, b"interrupted" in said, b"Traceback" in said) == (130, True, False)
    assert "waited in vain" not in toy.log
    toy.stall.set()
    assert not toy.manifests
    assert digest in Kiln(work.home.root).run(*where, env=work.environment)
    assert toy.manifests["one"][1] == work.store.read(work.store.refs()[ROW].digest)
    assert toy.uploads == {}


@pytest.mark.parametrize(("found", "whole"), [(b"short", False), (bytes(len(DATA)), True)])
def test_what_is_damaged_there_is_sent_again(
    toy: Toy, work: Project, capsys: pytest.CaptureFixture[str], found: bytes, *, whole: bool
) -> None:
    """Another size is seen at once, other bytes with --verify; then it is whole."""
    made(work)
    toy.blobs[digests.of_bytes(DATA)] = found
    sent = transfer.push(work, row(), f"{toy.host}/{REPOSITORY}:one", whole=whole)
    assert toy.blobs[digests.of_bytes(DATA)] == DATA
    assert sent.pushed.blobs[digests.of_bytes(DATA)] == "sent"
    assert sent.served.wrong == {}
    assert ("and sent again" in capsys.readouterr().err) == whole


@pytest.mark.parametrize(("found", "whole"), [(b"short", False), (bytes(len(DATA)), True)])
def test_a_registry_that_keeps_a_damaged_blob_is_told(toy: Toy, work: Project, found: bytes, *, whole: bool) -> None:
    """It was sent, and nothing changed: only who runs the registry can help."""
    made(work)
    toy.blobs[digests.of_bytes(DATA)] = found
    toy.faults["PUT"] = ["kept"] * 9
    with pytest.raises(VerifyError, match=digests.of_bytes(DATA)) as raised:
        transfer.push(work, row(), f"{toy.host}/{REPOSITORY}:one", whole=whole)
    assert "storage is damaged" in raised.value.remedy
    assert "one" not in toy.manifests  # nobody is led to it


def test_a_copy_is_looked_at_before_its_tag(toy: Toy, work: Project) -> None:
    """What is another blob there than the image says gets no name."""
    made(work)
    sent = transfer.push(work, row(), f"{toy.host}/{REPOSITORY}:one")
    with toyregistry.serving() as other:
        other.blobs[digests.of_bytes(DATA)] = bytes(len(DATA))
        with pytest.raises(VerifyError, match=digests.of_bytes(DATA)):
            transfer.copy(work, sent.pushed.reference, f"{other.host}/{REPOSITORY}:two", whole=True)
        assert "two" not in other.manifests


@pytest.mark.parametrize("broken", [False, True])
def test_neither_a_push_nor_a_copy_needs_any_disk(toy: Toy, full_disk: Path, *, broken: bool) -> None:
    """On a disk that is full what was built still gets out; an upload that breaks off just isn't noted."""
    work = Project(root=ROOT, home=homes.prepare(homes.Home(full_disk / "home")), environment={"NETRC": "/nonexistent"})
    made(work, data=LARGE)
    with (full_disk / "rest").open("wb", buffering=0) as rest, suppress(OSError):
        while rest.write(bytes(1 << 12)):
            pass
    assert shutil.disk_usage(full_disk).free == 0
    place = f"{toy.host}/{REPOSITORY}"
    with toyregistry.serving() as other:
        for registry in (toy, other):
            registry.faults["PATCH"] = ["cut"] * broken
        digest = transfer.push(work, row(), f"{place}:one").pushed.digest
        assert transfer.copy(work, f"{place}@{digest}", f"{other.host}/{REPOSITORY}:two").pushed.digest == digest
        assert other.manifests["two"] == toy.manifests["one"]


def test_an_image_of_which_nothing_is_known_is_pushed_without_an_index(
    toy: Toy, work: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that was pulled, or made of another plan: that is told, with the command that writes one."""
    made(work)
    transfer.push(work, row(), f"{toy.host}/{REPOSITORY}:one")
    assert not [name for name in toy.manifests if name.startswith("layer-")]
    assert f"--push {toy.host}/{REPOSITORY} writes an index" in capsys.readouterr().err.replace("\n", " ")
