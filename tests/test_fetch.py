from __future__ import annotations

import errno
import os
import random
import resource
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests import loopback
from tests.dripping import PATIENCE
from torchkiln import download, fetch, network
from torchkiln.errors import FetchError, HashMismatchError, HostError
from torchkiln.lock import lockfile
from torchkiln.lock.lockfile import Inputs, Lock, Pin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.loopback import Index
    from torchkiln.home import Home

NOISE = random.Random(0).randbytes(300_000)  # noqa: S311  no secret
"""A wheel of a size at which a cut in the middle leaves something."""
ASKED = Inputs(python="3.11", platform="x86_64 glibc 2.36", index="default")


@pytest.fixture
def index() -> Iterator[Index]:
    """An index on this machine."""
    with loopback.serve() as served:
        yield served


def lock_of(*pins: Pin) -> Lock:
    """A lock of the test's index."""
    return lockfile.make(ASKED, pins, "uv")


def fetched(home: Home, index: Index, *pins: Pin, sleeps: list[float] | None = None, **more: str) -> Mapping[str, Path]:
    """Fetch without waiting between tries."""
    environment = index.environment(home.root) | more
    slept = [] if sleeps is None else sleeps
    return fetch.fetch(home, lock_of(*pins), environment=environment, sleep=slept.append)


def left_in(home: Home) -> list[str]:
    """Whatever lies under a wheel's final name, in the whole cache."""
    return [path.name for path in home.wheels.rglob("*.whl")]


def test_a_second_run_asks_nobody(home: Home, index: Index) -> None:
    """Wheels lie under their hash and name; with all of them there, no index and no file is asked."""
    pins = [index.add("one", "1"), index.add("two", "2", body=NOISE)]
    found = fetched(home, index, *pins)
    assert {sha256: path.read_bytes() for sha256, path in found.items()} == {
        pin.sha256: index.files["simple"][pin.filename].content for pin in pins
    }
    assert found[pins[0].sha256] == home.wheel(pins[0].sha256, pins[0].filename)
    again = fetch.fetch(home, lock_of(*pins), environment={"UV_DEFAULT_INDEX": "http://127.0.0.1:1/"})
    assert again == found


def test_each_wheel_is_told_as_it_comes(home: Home, index: Index) -> None:
    """Work on a wheel may begin while others are on their way; cached wheels are told too."""
    pins = [index.add("one", "1"), index.add("two", "2")]
    fetched(home, index, pins[0])
    told: list[tuple[Pin, bool]] = []
    fetch.fetch(
        home,
        lock_of(*pins),
        environment=index.environment(home.root),
        on_ready=lambda pin, path: told.append((pin, path.is_file())),
    )
    assert told == [(pins[0], True), (pins[1], True)]


def test_a_cut_download_goes_on_where_it_ended(home: Home, index: Index) -> None:
    """A connection that ends at 60 % costs only the rest."""
    pin = index.add("big", "1", body=NOISE)
    index.faults[pin.filename] = ["cut"]
    fetched(home, index, pin)
    assert index.asked == [(pin.filename, ""), (pin.filename, f"bytes={pin.weight * 6 // 10}-")]


def test_a_download_that_stalls_goes_on_too(home: Home, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then is as good as none; where it stays so, that is told."""
    monkeypatch.setattr(network, "TIMEOUT", PATIENCE)
    pin = index.add("big", "1", body=NOISE)
    index.faults[pin.filename] = ["drip"]
    fetched(home, index, pin)
    assert [wanted[:6] for _, wanted in index.asked][:2] == ["", "bytes="]
    other = index.add("other", "1", body=NOISE)
    index.faults[other.filename] = ["!drip"]
    with pytest.raises(FetchError, match=rf"next to nothing, after \d+ of {other.weight} bytes"):
        fetched(home, index, other)


def test_a_server_that_leads_in_circles_is_told(home: Home, index: Index) -> None:
    """At once: it would do so the next time."""
    pin = index.add("one", "1")
    index.faults[pin.filename] = ["!astray"]
    with pytest.raises(FetchError, match="leads in circles"):
        fetched(home, index, pin)
    assert len(index.asked) == network.MOST_HOPS + 1


@pytest.mark.parametrize("ranges", [True, False])
def test_a_wheel_of_unknown_size_is_fetched_by_its_hash(home: Home, index: Index, *, ranges: bool) -> None:
    """Where only the hash is known, the server's word for the size does: a cut is noticed and gone on with."""
    pin = replace(index.add("big", "1", body=NOISE), size=None)
    index.ranges = ranges
    index.faults[pin.filename] = ["cut"]
    path = fetched(home, index, pin)[pin.sha256]
    assert path.read_bytes() == index.files["simple"][pin.filename].content
    assert fetch.fetch(home, lock_of(pin), environment={"UV_DEFAULT_INDEX": "http://127.0.0.1:1/"})[pin.sha256] == path


def test_a_wheel_of_unknown_size_is_not_endless(home: Home, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server can't fill the disk where neither it nor the lock says how much there is."""
    monkeypatch.setattr(download, "BIGGEST", 1000)
    with pytest.raises(HashMismatchError, match="as no wheel has"):
        fetched(home, index, replace(index.add("big", "1", body=NOISE), size=None))
    assert list(home.temporary.iterdir()) == []


def test_other_bytes_are_refused_whatever_their_size(home: Home, index: Index) -> None:
    """A pin without a size is still exactly one file."""
    pin = replace(index.add("big", "1", body=NOISE), size=None)
    index.faults[pin.filename] = ["!shorter"]
    with pytest.raises(HashMismatchError, match="other bytes"):
        fetched(home, index, pin)
    assert left_in(home) == []


def test_a_short_read_is_not_a_wrong_hash(home: Home, index: Index) -> None:
    """A server that always hangs up is a FetchError with the count of bytes; nothing has the final name."""
    pin = index.add("big", "1", body=NOISE)
    index.ranges = False
    index.faults[pin.filename] = ["!cut"]
    with pytest.raises(FetchError, match=rf"{pin.weight * 6 // 10} of {pin.weight} bytes") as raised:
        fetched(home, index, pin)
    assert "goes on where it stopped" in raised.value.remedy
    assert left_in(home) == []


def test_a_later_run_goes_on_with_a_partial_file(home: Home, index: Index) -> None:
    """What an interrupted run left is continued by the next, not trusted and not thrown away."""
    pin = index.add("big", "1", body=NOISE)
    index.faults[pin.filename] = ["cut", "404"]
    with pytest.raises(FetchError):
        fetched(home, index, pin)
    index.asked.clear()
    fetched(home, index, pin)
    assert index.asked == [(pin.filename, f"bytes={pin.weight * 6 // 10}-")]
    assert left_in(home) == [pin.filename]


@pytest.mark.parametrize("junk", [b"junk", bytes(10_000_000)])
def test_a_damaged_partial_file_is_thrown_away(home: Home, index: Index, junk: bytes) -> None:
    """Continuing something else, or something too long, ends in one fresh download."""
    pin = index.add("big", "1", body=NOISE)
    (home.temporary / f"{pin.sha256}.partial").write_bytes(junk)
    fetched(home, index, pin)
    assert index.asked[-1] == (pin.filename, "")
    assert left_in(home) == [pin.filename]


def test_a_server_without_ranges_is_read_anew(home: Home, index: Index) -> None:
    """A 200 in answer to a range begins at byte 0, and is taken as that."""
    pin = index.add("big", "1", body=NOISE)
    index.ranges = False
    index.faults[pin.filename] = ["cut"]
    fetched(home, index, pin)
    assert left_in(home) == [pin.filename]


def test_a_file_that_changes_meanwhile_is_not_pieced_together(home: Home, index: Index) -> None:
    """The entity tag of the first try decides whether the second may go on or has to begin (If-Range)."""
    pin = index.add("big", "1", body=NOISE)
    index.faults[pin.filename] = ["other-cut"]
    fetched(home, index, pin)
    assert len(index.asked) == 2


def test_a_busy_server_is_asked_again_when_it_says(home: Home, index: Index) -> None:
    """503 is waited out for as long as Retry-After says."""
    pin = index.add("one", "1")
    index.faults[pin.filename] = ["503", "503"]
    sleeps: list[float] = []
    fetched(home, index, pin, sleeps=sleeps)
    assert sleeps == [7, 7]


def test_tries_are_bounded(home: Home, index: Index) -> None:
    """A server that stays busy is a FetchError after five tries."""
    pin = index.add("one", "1")
    index.faults[pin.filename] = ["!503"]
    with pytest.raises(FetchError, match="503") as raised:
        fetched(home, index, pin)
    assert len(index.asked) == 5
    assert raised.value.remedy.endswith("run it again")  # nothing has come that it could go on with


@pytest.mark.parametrize("fault", ["other", "longer", "shorter"])
def test_wrong_bytes_are_refused_and_deleted(home: Home, index: Index, fault: str) -> None:
    """Bytes that were not pinned are an error with both hashes or sizes; no copy stays."""
    pin = index.add("one", "1")
    index.faults[pin.filename] = [f"!{fault}"]
    with pytest.raises(HashMismatchError) as raised:
        fetched(home, index, pin)
    assert (pin.sha256 if fault == "other" else str(pin.size)) in str(raised.value)
    assert left_in(home) == []
    assert list(home.temporary.iterdir()) == []


def test_every_failure_is_told(home: Home, index: Index) -> None:
    """Two wheels that fail are named in one error."""
    pins = [index.add("one", "1"), index.add("two", "1")]
    for pin in pins:
        index.faults[pin.filename] = ["together"]
    with pytest.raises(FetchError) as raised:
        fetched(home, index, *pins)
    assert all(pin.filename in str(raised.value) for pin in pins)


def test_a_vanished_wheel_is_taken_from_a_folder(home: Home, index: Index, tmp_path: Path) -> None:
    """A local copy with the locked hash is used, and then nobody is asked."""
    pin = index.add("one", "1")
    local = tmp_path / pin.filename
    local.write_bytes(index.files["simple"].pop(pin.filename).content)
    found = fetched(home, index, pin, TORCHKILN_FIND_LINKS=f"{tmp_path / 'absent'}:{tmp_path}")
    assert found[pin.sha256].read_bytes() == local.read_bytes()
    assert index.asked == []


def test_editing_a_file_at_hand_leaves_the_cache_alone(home: Home, index: Index, tmp_path: Path) -> None:
    """What was taken from a folder is a copy: a file that is written to in place later does not change the cache."""
    pin = index.add("one", "1", body=NOISE)
    local = tmp_path / pin.filename
    content = index.files["simple"].pop(pin.filename).content
    local.write_bytes(content)
    found = fetched(home, index, pin, TORCHKILN_FIND_LINKS=str(tmp_path))
    with local.open("r+b") as file:
        file.write(b"edited")
    assert found[pin.sha256].read_bytes() == content


def test_a_folder_that_does_not_exist_is_named_once(
    home: Home, index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt TORCHKILN_FIND_LINKS is a warning; the index serves what is missing."""
    pins = [index.add("one", "1"), index.add("two", "1")]
    fetched(home, index, *pins, TORCHKILN_FIND_LINKS=str(tmp_path / "wheeels"))
    said = capsys.readouterr().err
    assert said.count("wheeels, which is no folder") == 1
    assert "warning: TORCHKILN_FIND_LINKS names" in said


def test_a_vanished_wheel_is_an_error_with_a_remedy(home: Home, index: Index) -> None:
    """An index that no longer lists a pinned version, or answers 404 for it, says so and what to do."""
    gone, missing = index.add("one", "1"), index.add("two", "1")
    del index.files["simple"][gone.filename]
    index.faults[missing.filename] = ["404"]
    for pin in (gone, missing):
        with pytest.raises(FetchError) as raised:
            fetched(home, index, pin)
        assert pin.name in raised.value.what
        assert "TORCHKILN_FIND_LINKS" in raised.value.remedy


def test_an_index_that_lists_other_bytes_is_refused_unread(home: Home, index: Index) -> None:
    """The same name with another hash is an error before a byte is fetched, and never a fallback."""
    pin = index.add("one", "1")
    index.add("one", "1", body=b"changed")
    with pytest.raises(HashMismatchError, match="serves other bytes"):
        fetched(home, index, pin)
    assert index.asked == []


def test_a_yanked_wheel_is_fetched_for_its_exact_pin(
    home: Home, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    """Yanked is allowed for what a lock pins, with a warning."""
    pin = index.add("one", "1", yanked="broken on Tuesdays")
    fetched(home, index, pin)
    assert left_in(home) == [pin.filename]
    assert "broken on Tuesdays" in capsys.readouterr().err


def test_another_file_in_a_folder_is_reported_and_not_used(
    home: Home, index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of wheels is trusted for nothing but the bytes that the lock pins."""
    pin = index.add("one", "1")
    (tmp_path / pin.filename).write_bytes(b"something else")
    found = fetched(home, index, pin, TORCHKILN_FIND_LINKS=str(tmp_path))
    assert found[pin.sha256].read_bytes() == index.files["simple"][pin.filename].content
    assert "is not the pinned file" in capsys.readouterr().err


def test_what_was_at_hand_in_vain_is_told_with_the_failure(home: Home, index: Index, tmp_path: Path) -> None:
    """Whoever put a wheel into a folder is told why it was not taken: where it has other bytes, or no folder is."""
    pin, fine = index.add("one", "1"), index.add("two", "1")
    (tmp_path / pin.filename).write_bytes(b"cut")
    (tmp_path / fine.filename).write_bytes(index.files["simple"].pop(fine.filename).content)
    index.faults[pin.filename] = ["404"]
    links = f"{tmp_path / 'absent'}:{tmp_path}"
    for address in (f"{index.url}/simple", "http://127.0.0.1:1/simple"):
        with pytest.raises(FetchError) as raised:
            fetched(home, index, pin, fine, TORCHKILN_FIND_LINKS=links, UV_DEFAULT_INDEX=address)
        told = raised.value.what.splitlines()[-1]
        assert told == (
            f"TORCHKILN_FIND_LINKS was of no use: {tmp_path / 'absent'} does not exist; "
            f"{tmp_path / pin.filename} has another sha256 than the lock pins"
        )
        assert raised.value.remedy


def test_a_cached_file_that_lost_bytes_is_fetched_anew(home: Home, index: Index) -> None:
    """A final name with another size was damaged after the fact."""
    pin = index.add("one", "1")
    path = fetched(home, index, pin)[pin.sha256]
    path.write_bytes(b"half")
    assert fetched(home, index, pin)[pin.sha256].stat().st_size == pin.size


def test_no_network_is_said(home: Home, index: Index) -> None:
    """An index that cannot be reached is a FetchError that asks about the network."""
    pin = index.add("one", "1")
    with pytest.raises(FetchError) as raised:
        fetched(home, index, pin, UV_DEFAULT_INDEX="http://127.0.0.1:1/simple")
    assert "the package index failed, which was asked for one 1\n" in raised.value.what
    assert raised.value.where.startswith("127.0.0.1:1/simple")
    assert "network" in raised.value.remedy


@pytest.mark.parametrize("broken", ["whl", "simple"])
def test_the_index_that_failed_is_told_with_what_it_was_asked_for(home: Home, index: Index, broken: str) -> None:
    """With one of two indexes out of reach, nobody is sent to look for the other one's wheels there."""
    torch = index.add("torch", "2.13.0+cpu", "cp311-cp311-manylinux_2_28_x86_64", folder="whl/cpu")
    pins = [torch, index.add("one", "1"), index.add("two", "1")]
    lock = lockfile.make(Inputs(python="3.11", platform="x86_64 glibc 2.36", index="cpu"), pins, "uv")
    gone = {"whl": "TORCHKILN_PYTORCH_INDEX", "simple": "UV_DEFAULT_INDEX"}[broken]
    environment = index.environment(home.root) | {gone: f"http://user:hunter2@127.0.0.1:1/{broken}"}
    with pytest.raises(FetchError) as raised:
        fetch.fetch(home, lock, environment=environment, sleep=lambda _seconds: None)
    wanted = {
        "whl": "PyTorch index failed, which was asked for torch 2.13.0+cpu; missing too, from another index: one 1",
        "simple": "package index failed, which was asked for one 1, two 1; missing too, from another index: torch 2.1",
    }
    assert wanted[broken] in raised.value.what
    assert f"127.0.0.1:1/{broken}" in raised.value.where
    assert "hunter2" not in str(raised.value)


def test_a_file_server_that_is_gone_is_said(home: Home, index: Index) -> None:
    """The index answers and its file server does not: a FetchError after bounded tries."""
    pin = index.add("one", "1")
    index.faults[pin.filename] = ["!cut"]
    with pytest.raises(FetchError, match=r"of \d+ bytes"):
        fetched(home, index, pin)


def test_too_little_room_is_seen_before_anything_is_asked(home: Home, index: Index) -> None:
    """What cannot fit on the disk is a HostError with the amount."""
    pin = Pin(name="huge", version="1", sha256="0" * 64, filename="huge-1-py3-none-any.whl", size=10**16)
    with pytest.raises(HostError, match=r"10000000\.00 GB"):
        fetched(home, index, pin)


def test_a_disk_that_fills_up_is_told_and_nothing_is_lost(home: Home, index: Index) -> None:
    """A write that does not fit is a HostError; with room again the same file is gone on with."""
    pin = index.add("big", "1", body=NOISE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(HostError, match="big-1"):
            fetched(home, index, pin)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    fetched(home, index, pin)
    assert left_in(home) == [pin.filename]


def test_a_full_disk_says_how_much_is_needed(home: Home, tmp_path: Path) -> None:
    """However a disk turns out to be full, the error has the bytes still to come and what makes room."""
    pin = Pin(name="big", version="1", sha256="0" * 64, filename="big-1-py3-none-any.whl", size=3_000_000)
    partial = tmp_path / "partial"
    partial.write_bytes(bytes(1_000_000))
    told = [download._disk(OSError(errno.ENOSPC, "No space left on device"), pin, partial)]
    with pytest.raises(HostError) as raised, fetch._room(home, lock_of(pin)):
        os.write(os.open("/dev/full", os.O_WRONLY), b"x")
    assert "2.0 MB more are needed" in told[0].what
    assert "3.0 MB more are needed" in raised.value.what
    for error in (told[0], raised.value):
        assert "./inv gc" in error.remedy
        assert "TORCHKILN_HOME" in error.remedy


def test_builds_at_the_same_time_share_a_download(home: Home, index: Index) -> None:
    """Two builds that need the same wheel fetch it once; both get it."""
    pin = index.add("big", "1", body=NOISE)
    index.faults[pin.filename] = ["slow"]
    found: list[Mapping[str, Path]] = []

    def build() -> None:
        found.append(fetch.fetch(home, lock_of(pin), environment=index.environment(home.root)))

    builds = [threading.Thread(target=build) for _ in range(3)]
    for build_thread in builds:
        build_thread.start()
    for build_thread in builds:
        build_thread.join()
    assert len(found) == 3
    assert index.asked == [(pin.filename, "")]


def test_credentials_of_an_index_serve_its_files_and_stay_secret(
    home: Home, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    """A private index is used with the password in its address, which no message and no file repeats."""
    index.password = "hunter2secret"  # noqa: S105  of a server that lives for one test
    pin, broken = index.add("one", "1"), index.add("two", "1")
    fetched(home, index, pin)
    index.faults[broken.filename] = ["404"]
    with pytest.raises(FetchError) as raised:
        fetched(home, index, broken)
    del index.files["simple"][broken.filename]
    with pytest.raises(FetchError) as vanished:
        fetched(home, index, broken)
    told = f"{raised.value} {vanished.value} {capsys.readouterr()}"
    kept = b"".join(path.read_bytes() for path in home.root.rglob("*") if path.is_file() and "uv" not in path.parts)
    assert "hunter2secret" not in told
    assert b"hunter2secret" not in kept


def test_the_pinned_file_is_fetched_though_a_better_one_appeared(home: Home, index: Index) -> None:
    """An index that got another wheel of the same version later still serves the one that was locked."""
    pin = index.add("one", "1")
    index.add("one", "1", "2-py3-none-any", body=b"rebuilt")
    index.add("one", "1", "cp311-cp311-manylinux_2_28_x86_64", body=b"compiled")
    assert fetched(home, index, pin)[pin.sha256].name == pin.filename


def test_a_caller_that_fails_ends_the_downloads(home: Home, index: Index) -> None:
    """When the work on a wheel raises, as Ctrl-C does, what has not begun is not begun any more."""
    pins = [index.add(f"wheel{number}", "1") for number in range(20)]
    for pin in pins:
        index.faults[pin.filename] = ["slow"]

    def fail(_pin: Pin, _path: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.fetch(home, lock_of(*pins), environment=index.environment(home.root), on_ready=fail)
    assert len(index.asked) < 20
