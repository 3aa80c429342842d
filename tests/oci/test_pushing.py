"""An image may be pushed while it is made; its layers may lie in the store or in another registry."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests import toyregistry
from tests.oci.test_push import CHUNK, LARGE, SMALL, imaged, untagged, whole
from tests.toyregistry import REPOSITORY, Toy, tar
from torchkiln.errors import PushError, StoreError
from torchkiln.oci.image import append
from torchkiln.oci.push import Pusher, pushing
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path


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


def test_what_is_not_finished_has_no_tag(toy: Toy, store: Store) -> None:
    """A build that fails in between leaves blobs and no name; what is being sent is given up."""
    image = imaged(store, LARGE, SMALL)
    toy.faults["PATCH"] = ["", "stall"]
    with begun(toy, store) as pusher:
        for layer in image.layers:
            pusher.offer(layer)
        assert toy.stalled.wait(60)
        threading.Timer(0.1, toy.stall.set).start()
    assert untagged(toy)
    assert not toy.manifests
    assert image.layers[0].descriptor.digest not in toy.blobs


def test_a_failure_is_told_to_whoever_offers_next(toy: Toy, store: Store) -> None:
    """A build need not go on to its end for a registry that refuses."""
    image = imaged(store, SMALL, LARGE)
    toy.faults["POST"] = ["403"] * 9
    with begun(toy, store) as pusher:
        pusher.offer(image.layers[0])
        assert pusher.delivery.halt.wait(60)
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
