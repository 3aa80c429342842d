"""Layers are taken from a repository only if a lock or their own content vouches for them."""

from __future__ import annotations

import gzip
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests import toyregistry
from tests.toyregistry import REPOSITORY, Toy, tar
from torchkiln.errors import FetchError, ImageError
from torchkiln.oci import digest as digests
from torchkiln.oci import layerindex, remote
from torchkiln.oci.image import LAYER_TYPE, ZSTD_TYPE, Descriptor, Layer
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torchkiln.oci.remote import Remote

KEY, OTHER = f"wheel-{'0' * 64}", f"bytecode-{'1' * 64}"
TITLES = {KEY: "torch 2.5.1", OTHER: "bytecode of torch 2.5.1"}
TAR, EVIL = tar({"opt/one": b"1" * 5000}), tar({"opt/one": b"2" * 5000})


def layer(data: bytes = TAR, title: str = "torch 2.5.1") -> Layer:
    """As our own are: one gzip member."""
    packed = gzip.compress(data, mtime=0)
    blob = Descriptor(media_type=LAYER_TYPE, digest=digests.of_bytes(packed), size=len(packed))
    return Layer(descriptor=blob, diff_id=digests.of_bytes(data), unpacked_size=len(data), title=title)


@pytest.fixture
def toy() -> Iterator[Toy]:
    """A registry on loopback with two blobs, and nothing in its index."""
    with toyregistry.serving() as found:
        found.put(gzip.compress(TAR, mtime=0))
        found.put(gzip.compress(EVIL, mtime=0))
        yield found


@contextmanager
def at(toy: Toy, store: Store) -> Iterator[Remote]:
    """Its layers; nobody waits."""
    environment = {"NETRC": "/nonexistent"}
    with remote.at(
        f"{toy.host}/{REPOSITORY}", store, environment=environment, sleep=lambda _seconds: None, row="--target toy"
    ) as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Empty."""
    return Store(tmp_path / "store")


def blobs_served(toy: Toy) -> set[str]:
    """Digests of blobs that were asked for, by GET or HEAD."""
    return {path.rpartition("/")[2] for path, _ in toy.asked if "/blobs/sha256" in path}


def claim(toy: Toy, claimed: Layer, key: str = KEY) -> None:
    """Let the index say so, whether it is true or not."""
    toy.manifests[f"layer-{key}"] = ("", layerindex.entry(key, claimed))


def test_a_locked_layer_is_found_without_moving_it(toy: Toy, store: Store) -> None:
    """Its blob need only be there; the index isn't even asked. A lock's title is not the image's: ours is."""
    locked = {KEY: layer(title="of a lock"), "wheel-unasked": layer(EVIL)}
    with at(toy, store) as found:
        assert found.find(TITLES, locked) == {KEY: layer()}
        assert not store.has(layer().descriptor)
        assert [path for path, _ in toy.asked if KEY in path] == []
        assert found.bring({KEY: layer()}) == set()
    assert store.read(layer().descriptor.digest) == toy.blobs[layer().descriptor.digest]


def test_a_locked_layer_that_is_not_there_is_not_found(toy: Toy, store: Store) -> None:
    """It will be made; what is in the store already counts as there."""
    elsewhere = layer(tar({"opt/two": b"2"}))
    with at(toy, store) as found:
        assert found.find(TITLES, {KEY: elsewhere}) == {}
        store.put(gzip.compress(tar({"opt/two": b"2"}), mtime=0), LAYER_TYPE)
        assert found.find(TITLES, {KEY: elsewhere}) == {KEY: elsewhere}


def test_a_locked_layer_that_holds_nothing_need_not_be_there(toy: Toy, store: Store) -> None:
    """It gets into no image, so nobody pushes it; one that is only said to hold nothing must be there all the same."""
    nothing = layer(bytes(1024))
    with at(toy, store) as found:
        assert found.find(TITLES, {KEY: nothing}) == {KEY: nothing}
        assert found.bring({KEY: nothing}) == set()
        claim(toy, nothing)
        assert found.find(TITLES, {}) == {}


def test_an_entry_that_contradicts_a_lock_plays_no_part(toy: Toy, store: Store) -> None:
    """Whoever may write to the repository can't put another layer in the place of a locked one."""
    claim(toy, layer(EVIL))
    with at(toy, store) as found:
        assert found.find(TITLES, {KEY: layer()}) == {KEY: layer()}
        found.bring({KEY: layer()})
    assert layer(EVIL).descriptor.digest not in blobs_served(toy)


def test_what_no_lock_knows_is_read_to_its_end(toy: Toy, store: Store) -> None:
    """It is in the store after, and holds what its entry states; the entry's title plays no part."""
    claim(toy, layer(title="something else"))
    with at(toy, store) as found:
        assert found.find(TITLES, {}) == {KEY: layer()}
    assert store.has(layer().descriptor)


@pytest.mark.parametrize(
    "lie",
    [
        replace(layer(), diff_id=layer(EVIL).diff_id),
        replace(layer(), unpacked_size=len(TAR) - 1),
        replace(layer(), unpacked_size=len(TAR) + 1),
        replace(layer(), descriptor=replace(layer().descriptor, size=layer().descriptor.size - 1)),
        replace(layer(), descriptor=layer(EVIL).descriptor),
        replace(layer(), descriptor=replace(layer().descriptor, media_type=ZSTD_TYPE)),
    ],
    ids=["diff_id", "unpacked to more", "unpacked to less", "size", "blob", "form"],
)
def test_a_claim_that_does_not_hold_is_told_and_not_used(
    toy: Toy, store: Store, lie: Layer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another blob, diff_id or size than the entry states: the layer is made instead."""
    claim(toy, lie)
    with at(toy, store) as found:
        assert found.find(TITLES, {}) == {}
    assert f"{TITLES[KEY]}: what {toy.host}/{REPOSITORY} has" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("strict", [False, True])
def test_a_claim_must_be_of_the_tar_that_is_known(
    toy: Toy, store: Store, capsys: pytest.CaptureFixture[str], *, strict: bool
) -> None:
    """As that of another compression: then it is as good as locked; another tar, though whole, isn't even fetched."""
    claim(toy, layer(EVIL))
    claim(toy, layer(), OTHER)
    tars = {key: layer().diff_id for key in TITLES}
    with at(toy, store) as found:
        assert found.find(TITLES, {}, tars=tars, strict=strict) == {OTHER: layer(title=TITLES[OTHER])}
    assert not store.has(layer(EVIL).descriptor)
    assert "is not used: its entry states" in capsys.readouterr().err


def test_a_claim_whose_blob_is_gone_is_not_used(toy: Toy, store: Store) -> None:
    """A registry may have collected it: then the layer is made, and that is no error."""
    claim(toy, layer(tar({"opt/two": b"2"})))
    with at(toy, store) as found:
        assert found.find(TITLES, {}) == {}


def test_a_lie_costs_no_good_layer(toy: Toy, store: Store) -> None:
    """What is in the store for other images stays, whatever an entry says about it."""
    store.put(gzip.compress(TAR, mtime=0), LAYER_TYPE)
    claim(toy, replace(layer(), diff_id=layer(EVIL).diff_id))
    with at(toy, store) as found:
        assert found.find(TITLES, {}) == {}
    assert store.has(layer().descriptor)


def test_a_registry_is_not_blamed_for_what_rotted_here(
    toy: Toy, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blob of a claim is brought again and used; what the registry then sends is judged as ever."""
    claim(toy, layer())
    rotten, good = store.path(layer().descriptor.digest), toy.blobs[layer().descriptor.digest]
    with at(toy, store) as found:
        for faults in ([], ["", "other"]):
            found.find(TITLES, {})
            rotten.write_bytes(good[:-40] + bytes(40))
            toy.faults[layer().descriptor.digest] = list(faults)
            capsys.readouterr()
            assert found.find(TITLES, {}) == ({} if faults else {KEY: layer()})
            assert ("is not used" in capsys.readouterr().err) is bool(faults)
            assert found.damaged == ({layer().descriptor.digest} if faults else set())
            assert rotten.exists() is not bool(faults)


@pytest.mark.parametrize("fault", ["other", "longer"])
def test_other_bytes_for_a_locked_layer_are_told_and_not_taken(
    toy: Toy, store: Store, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of them is kept; what is good comes all the same."""
    good = layer(EVIL, TITLES[OTHER])
    toy.faults[layer().descriptor.digest] = ["", fault]
    with at(toy, store) as found:
        known = found.find(TITLES, {KEY: layer(), OTHER: good})
        assert found.bring(known) == {KEY}
    assert not store.has(layer().descriptor)
    assert store.has(good.descriptor)
    said = capsys.readouterr().err.replace("\n", " ")
    assert f"{TITLES[KEY]}: what {toy.host}/{REPOSITORY} has is not used" in said
    assert f"./inv push {toy.host}/{REPOSITORY}:TAG --target toy --verify sends it there again" in said


def test_a_locked_layer_that_is_shorter_there_is_told(
    toy: Toy, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its size says so: nothing of it is fetched."""
    toy.blobs[layer().descriptor.digest] = b"short"
    with at(toy, store) as found:
        assert found.find(TITLES, {KEY: layer()}) == {}
    assert f"it has 5 bytes, not {layer().descriptor.size}" in capsys.readouterr().err


def test_what_is_fetched_to_be_checked_is_told_once(toy: Toy, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """How many, and which; nothing of what is here already."""
    claim(toy, layer())
    claim(toy, layer(EVIL, TITLES[OTHER]), OTHER)
    with at(toy, store) as found:
        found.find(TITLES, {})
        said = capsys.readouterr().err
        found.find(TITLES, {})
    assert said.count("fetched to be checked") == 1
    assert "no lock knows 2 layers" in said
    assert all(title in said for title in TITLES.values())
    assert capsys.readouterr().err == ""


def test_a_registry_that_fails_amid_a_claim_is_an_error(toy: Toy, store: Store) -> None:
    """As one that can't be asked: making what is there already may take long."""
    claim(toy, layer())
    toy.faults[layer().descriptor.digest] = ["500"] * 9
    with at(toy, store) as found, pytest.raises(FetchError):
        found.find(TITLES, {})


@pytest.mark.parametrize("where", ["base", "localhost/x:tag", f"localhost/x@sha256:{'0' * 64}", "https://localhost/x"])
def test_layers_are_found_in_a_repository(store: Store, where: str) -> None:
    """Not under a tag, and not by an address."""
    with pytest.raises(ImageError), remote.at(where, store, environment={}):
        pass
