"""An image may be pushed while it is made; its layers may lie in the store or in another registry."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests import toyregistry
from tests.oci.test_push import CHUNK, LARGE, SMALL, imaged, untagged, whole
from tests.toyregistry import REPOSITORY, Toy, tar
from torchkiln.errors import HashMismatchError, PushError, StoreError
from torchkiln.oci import session, unfinished, upload
from torchkiln.oci.image import append
from torchkiln.oci.push import Pusher, pushing
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from torchkiln.oci.image import Image


@pytest.fixture
def toy() -> Iterator[Toy]:
    """A registry on loopback."""
    with toyregistry.serving() as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Where layers lie."""
    return Store(tmp_path / "store")


def begun(toy: Toy, store: Store, **given: Any) -> AbstractContextManager[Pusher]:  # noqa: ANN401  pushing's own
    """A push that nobody waits in."""
    options: dict[str, Any] = {
        "environment": {"NETRC": "/nonexistent"},
        "sleep": lambda _seconds: None,
        "chunk": CHUNK,
    } | given
    return pushing(f"{toy.host}/{REPOSITORY}:one", store, **options)


def test_a_layer_is_sent_while_the_next_is_made(toy: Toy, store: Store) -> None:
    """What is offered arrives before anybody finishes; what is offered twice is sent once."""
    image = imaged(store, LARGE)
    with begun(toy, store) as pusher:
        pusher.offer(image.layers[0])
        while not toy.log:
            threading.Event().wait(0.01)
        assert toy.log == [f"blob {image.layers[0].descriptor.digest}"]
        image = append(image, imaged(store, SMALL).layers)
        for layer in image.layers:
            pusher.offer(layer)
        done = pusher.finish(image)
    assert whole(toy, image)
    assert len(toy.log) == len(set(toy.log)) == 5
    assert set(done.blobs.values()) == {"sent"}


@pytest.mark.parametrize("where", ["PATCH", "PUT", "status"])
def test_what_is_not_finished_is_given_up_at_once(toy: Toy, store: Store, where: str) -> None:
    """A build that fails in between leaves blobs and no name; no registry that doesn't answer is waited for."""
    image = imaged(store, LARGE, SMALL)
    toy.faults |= {"PATCH": ["", "cut"], "PUT": ["", "stall"]} if where == "status" else {where: ["", "stall"]}
    with begun(toy, store) as pusher:
        for layer in image.layers:
            pusher.offer(layer)
        assert toy.stalled.wait(60)
    assert "waited in vain" not in toy.log
    toy.stall.set()
    assert not toy.manifests


def test_a_source_that_does_not_answer_is_not_waited_for(toy: Toy, store: Store, tmp_path: Path) -> None:
    """Whoever gives up leaves both registries, also the one that layers come from."""
    image, own = imaged(store, SMALL), Store(tmp_path / "own")
    with toyregistry.serving() as old:
        old.faults[old.put(SMALL)] = ["stall"]
        with begun(toy, own, source=f"{old.host}/{REPOSITORY}") as pusher:
            pusher.offer(image.layers[0])
            assert old.stalled.wait(60)
        assert "waited in vain" not in old.log
        old.stall.set()


def test_nobody_queues_for_a_token_that_does_not_come(toy: Toy, store: Store) -> None:
    """When the push is given up, those who waited for another thread's token don't ask for one of their own."""
    image = imaged(store, *(tar({"a": bytes([number])}) for number in range(4)))
    toy.tokens, toy.faults["token"] = True, ["stall"] + ["403"] * 9
    with begun(toy, store) as pusher:
        for layer in image.layers:
            pusher.offer(layer)
        while len(toy.asked) < len(image.layers) or not toy.stalled.is_set():
            threading.Event().wait(0.01)
    toy.stall.set()
    assert toy.faults["token"] == ["403"] * 9


DAMAGED = {
    "words": '{"location": "/", "least": []}',
    "elsewhere": '{"location": "http://one.example/upload", "least": 0}',
    "nowhere": '{"location": "http://one.example:port/", "least": 0}',
    "number": '{"location": 1, "least": 0}',
    "endless": '{"location": "https://one.example/", "least": Infinity}',
    "nested": "[" * 100_000,
}
"""Notes that nobody wrote."""


def broken(toy: Toy, store: Store, **given: Any) -> Image:  # noqa: ANN401  pushing's own
    """A push that ended amid a large layer, with half of what should have come."""
    image = imaged(store, LARGE)
    toy.faults |= {"PATCH": ["", "cut"] + ["500"] * 9}
    with pytest.raises(PushError), begun(toy, store, **given) as pusher:
        pusher.finish(image)
    toy.faults.clear()
    assert untagged(toy)
    toy.chunks.clear()
    return image


def test_another_run_goes_on_where_one_broke_off(toy: Toy, store: Store) -> None:
    """At the offset that the registry reports; nobody else may read where that is."""
    image = broken(toy, store)
    (note,) = store.uploads.iterdir()
    assert note.stat().st_mode & 0o777 == 0o600
    with begun(toy, store) as pusher:
        pusher.finish(image)
    assert whole(toy, image)
    assert [start for start, _ in toy.chunks] == [2 << 20, 4 << 20]
    assert (toy.uploads, list(store.uploads.iterdir())) == ({}, [])


@pytest.mark.parametrize("fault", ["damaged", "unsaid"])
def test_another_run_ends_what_one_began(toy: Toy, store: Store, fault: str) -> None:
    """Where the pieces are not the blob it is sent again from its beginning; a lost answer to the end is no loss."""
    image = broken(toy, store)
    toy.faults["PUT"] = [fault]
    with begun(toy, store) as pusher:
        pusher.offer(image.layers[0])
        pusher.delivery.wait()
        pusher.finish(image)
    assert whole(toy, image)
    again = [0, 1 << 20, 3 << 20, 5 << 20] if fault == "damaged" else []
    assert [start for start, _ in toy.chunks] == [2 << 20, 4 << 20, *again]
    assert (toy.uploads, list(store.uploads.iterdir())) == ({}, [])


@pytest.mark.parametrize("lost", ["upload", "note", "refused", *DAMAGED])
def test_another_run_begins_anew_where_nothing_is_known(toy: Toy, store: Store, lost: str) -> None:
    """The registry has forgotten the upload, or we have, or what we noted makes no sense."""
    image = broken(toy, store)
    (note,) = store.uploads.iterdir()
    if lost == "upload":
        toy.uploads.clear()
    elif lost == "refused":
        toy.faults["status"] = ["403"]
    else:
        note.write_text({"note": "", **DAMAGED}[lost])
    with begun(toy, store) as pusher:
        pusher.finish(image)
    assert whole(toy, image)
    assert [start for start, _ in toy.chunks] == [0, 1 << 20, 3 << 20, 5 << 20]
    assert list(store.uploads.iterdir()) == []


def test_two_runs_never_go_on_with_one_upload(toy: Toy, store: Store) -> None:
    """While one holds the note, another begins an upload of its own."""
    image = broken(toy, store)
    blob = image.layers[0].descriptor
    with unfinished.held(store.uploads, f"http://{toy.host}/v2/{REPOSITORY}/{blob.digest}") as note:
        assert note.read()[0]
        with begun(toy, store) as pusher:
            pusher.finish(image)
        assert whole(toy, image)
        assert toy.chunks[0][0] == 0


@pytest.mark.parametrize("fault", ["", "405", "500"])
def test_an_upload_that_nobody_can_go_on_with_is_cancelled(toy: Toy, store: Store, fault: str) -> None:
    """As distribution has it; a registry that knows no such thing is no reason to fail otherwise."""
    toy.faults |= {"status": ["405"] * 9, "DELETE": [fault] * 9 if fault else []}
    image = imaged(store, LARGE)
    toy.faults["PATCH"] = ["", "stall"]
    with begun(toy, store) as pusher:
        pusher.offer(image.layers[0])
        assert toy.stalled.wait(60)
    assert toy.uploads == {}
    assert list(store.uploads.iterdir()) == []
    toy.stall.set()


def test_uploads_that_a_refused_mount_began_are_cancelled(toy: Toy, store: Store) -> None:
    """Each repository that has not got the blob answers with an upload; one is used, the others go."""
    image = imaged(store, LARGE)
    with begun(toy, store, siblings=["team/a", "team/b", "team/c"]) as pusher:
        done = pusher.finish(image)
    assert whole(toy, image)
    assert set(done.blobs.values()) == {"sent"}
    assert toy.uploads == {}


@pytest.mark.parametrize("fault", ["stall", "drip"])
def test_a_registry_that_does_not_answer_is_asked_again(toy: Toy, store: Store, fault: str) -> None:
    """After a time: the connection is given up, and the upload goes on over another one."""
    image = imaged(store, LARGE)
    toy.faults["PUT"] = ["", fault]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upload, "COMMIT", httpx.Timeout(20, read=1))
        with begun(toy, store) as pusher:
            pusher.finish(image)
    toy.stall.set()
    assert whole(toy, image)


def test_spare_uploads_that_can_not_be_cancelled_end_no_push(toy: Toy, store: Store) -> None:
    """However many repositories were asked for a mount: the registry forgets them in time."""
    image, siblings = imaged(store, LARGE), [f"team/{number}" for number in range(2 * session.TRIES)]
    toy.faults["DELETE"] = ["500"] * 99
    with begun(toy, store, siblings=siblings) as pusher:
        pusher.finish(image)
    assert whole(toy, image)


@pytest.mark.parametrize(
    ("data", "faults"), [(SMALL, {"PUT": ["500"]}), (LARGE, {"PATCH": ["", "lost"]}), (LARGE, {"PUT": ["500"]})]
)
def test_what_is_sent_anew_is_sent_whatever_breaks(
    toy: Toy, store: Store, data: bytes, faults: dict[str, list[str]]
) -> None:
    """That the registry has a blob of that size says nothing then: it is the damaged one."""
    image = imaged(store, data)
    with begun(toy, store) as pusher:
        pusher.finish(image)
    blob = image.layers[0].descriptor
    toy.blobs[blob.digest] = bytes(blob.size)
    toy.faults |= faults
    with begun(toy, store) as pusher:
        pusher.anew.add(blob.digest)
        pusher.finish(image)
    assert whole(toy, image)


def test_a_blob_that_the_registry_collects_meanwhile_is_sent_by_another_run(toy: Toy, store: Store) -> None:
    """Its manifest is refused, so nothing names less than all; the remedy is no other name."""
    image = imaged(store, SMALL)
    with begun(toy, store) as pusher:
        pusher.offer(image.layers[0])
        pusher.delivery.wait()
        toy.blobs.clear()
        with pytest.raises(PushError, match="BLOB_UNKNOWN") as raised:
            pusher.finish(image)
    assert raised.value.remedy.startswith("run it again")
    assert untagged(toy)
    with begun(toy, store) as pusher:
        pusher.finish(image)
    assert whole(toy, image)


def test_a_failure_is_told_to_whoever_offers_next(toy: Toy, store: Store) -> None:
    """A build need not go on to its end for a registry that refuses."""
    image = imaged(store, SMALL, LARGE)
    toy.faults["POST"] = ["403"] * 9
    with begun(toy, store) as pusher:
        pusher.offer(image.layers[0])
        assert pusher.delivery.registry._halted.wait(60)
        for act in (lambda: pusher.offer(image.layers[1]), lambda: pusher.finish(image)):
            with pytest.raises(PushError, match="refuses"):
                act()
    assert untagged(toy)


def test_layers_of_another_registry_are_passed_on(toy: Toy, store: Store, tmp_path: Path) -> None:
    """Where the store has them not: streamed, and taken up where either side broke."""
    image, own = imaged(store, LARGE), Store(tmp_path / "own")
    image = append(image, imaged(own, SMALL).layers)
    with toyregistry.serving() as old:
        digest = image.layers[0].descriptor.digest
        old.put(LARGE)
        old.faults[digest] = ["", "cut", "503"]
        toy.faults["PATCH"] = ["", "", "cut"]
        with begun(toy, own, source=f"{old.host}/{REPOSITORY}") as pusher:
            done = pusher.finish(image)
        assert {path.rpartition("/")[2] for path, _ in old.asked} == {digest}
    assert whole(toy, image)
    assert set(done.blobs.values()) == {"sent"}


@pytest.mark.parametrize("fault", ["", "403"])
def test_layers_of_a_repository_next_door_are_mounted(toy: Toy, store: Store, tmp_path: Path, fault: str) -> None:
    """Nothing of them passes through this machine; where mounting is refused, they are streamed."""
    image, empty = imaged(store, LARGE, SMALL), Store(tmp_path / "empty")
    blobs = {layer.descriptor.digest: data for layer, data in zip(image.layers, (LARGE, SMALL), strict=True)}
    toy.others = {str(digest): data for digest, data in blobs.items()}
    toy.mounts = {"team/other": set(toy.others)}
    toy.faults["mount"] = [fault] * (3 if fault else 0)
    with begun(toy, empty, source=f"{toy.host}/team/other") as pusher:
        done = pusher.finish(image)
    assert whole(toy, image)
    assert [done.blobs[digest] for digest in blobs] == ["sent" if fault else "mounted"] * 2
    read = [path for path, _ in toy.asked if path.startswith("/v2/team/other/blobs/")]
    assert bool(read) == bool(fault)


def test_layers_that_are_nowhere_are_told_at_once(toy: Toy, store: Store, tmp_path: Path) -> None:
    """Before anything is sent; of a source that turns out not to have them, when it is asked."""
    image, empty = imaged(store, SMALL, tar({"a": b"b"})), Store(tmp_path / "empty")
    with begun(toy, empty) as pusher, pytest.raises(StoreError, match="2 layers are missing"):
        pusher.finish(image)
    with begun(toy, empty, source=f"{toy.host}/{REPOSITORY}") as pusher, pytest.raises(PushError, match="404"):
        pusher.finish(image)
    assert not toy.manifests


def test_a_damaged_blob_that_another_run_began_to_pass_on_is_its_source_s(
    toy: Toy, store: Store, tmp_path: Path
) -> None:
    """Half of it was never seen by this run: the source is read anew before anybody is blamed."""
    image, own = imaged(store, LARGE), Store(tmp_path / "own")
    digest = image.layers[0].descriptor.digest
    with toyregistry.serving() as old:
        old.blobs[digest] = b"x" + LARGE[1:]
        source = f"{old.host}/{REPOSITORY}"
        toy.faults |= {"PATCH": ["", "cut"] + ["500"] * 9}
        with pytest.raises(PushError), begun(toy, own, source=source) as pusher:
            pusher.finish(image)
        toy.faults.clear()
        toy.chunks.clear()
        with pytest.raises(HashMismatchError) as raised, begun(toy, own, source=source) as pusher:
            pusher.finish(image)
        assert toy.chunks[0][0] > 0
        assert (raised.value.where, "the registry serves" in raised.value.what) == (source, True)
        old.blobs[digest] = LARGE
        with begun(toy, own, source=source) as pusher:
            pusher.finish(image)
    assert whole(toy, image)


def test_bytes_that_are_lost_on_the_way_are_not_the_source_s(toy: Toy, store: Store, tmp_path: Path) -> None:
    """A registry that refuses what its source served well is named itself."""
    image, own = imaged(store, LARGE), Store(tmp_path / "own")
    with toyregistry.serving() as old:
        old.put(LARGE)
        toy.faults["PUT"] = ["damaged"] * 9
        with pytest.raises(HashMismatchError, match="got other bytes") as raised:  # noqa: SIM117  one statement raises
            with begun(toy, own, source=f"{old.host}/{REPOSITORY}") as pusher:
                pusher.finish(image)
    assert raised.value.where == f"{toy.host}/{REPOSITORY}"


def test_no_total_is_told_while_layers_are_made(toy: Toy, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """Only what is done; when all are known, of how many."""
    image = append(imaged(store, LARGE), imaged(store, LARGE[::-1]).layers)
    with begun(toy, store) as pusher:
        pusher.offer(image.layers[0])
        while not toy.log:
            threading.Event().wait(0.01)
        while "done)" not in (said := capsys.readouterr().err):
            threading.Event().wait(0.01)
        assert "(1 done)" in said
        assert " of " not in said.replace("of 5 MB", "")
        pusher.finish(image)
    assert "(3 of 3)" in capsys.readouterr().err


def test_a_registry_that_takes_nothing_is_told_at_once(toy: Toy, store: Store) -> None:
    """Only an upload tells whether one may be made: it is begun, given up, and nothing is left of it."""
    with begun(toy, store) as pusher:
        pusher.ask()
    assert (toy.uploads, toy.blobs, toy.log) == ({}, {}, [])
    toy.faults |= {"DELETE": ["500"]}
    with begun(toy, store) as pusher:
        pusher.ask()
    toy.faults["POST"] = ["403"]
    with begun(toy, store) as pusher, pytest.raises(PushError, match="the registry refuses: 403"):
        pusher.ask()
    toy.tokens, toy.password = True, "word"
    with begun(toy, store) as pusher, pytest.raises(PushError, match="the registry refuses: 403"):
        pusher.ask()


def test_a_source_that_can_not_be_read_is_told_at_once(toy: Toy, store: Store) -> None:
    """A repository that isn't there yet is no reason to fail: what it lacks is made."""
    with toyregistry.serving() as other:
        with begun(toy, store, source=f"{other.host}/{REPOSITORY}") as pusher:
            pusher.ask()
        other.password = "word"  # noqa: S105  of a toy
        with (
            begun(toy, store, source=f"{other.host}/{REPOSITORY}") as pusher,
            pytest.raises(PushError, match="the registry refuses: 401") as raised,
        ):
            pusher.ask()
        assert raised.value.where == f"{other.host}/{REPOSITORY}"
