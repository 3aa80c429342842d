"""Lock files written anew, by uv on an index of this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import loopback
from torchkiln.errors import HashMismatchError, LockError, StaleLockError
from torchkiln.lock import asking, difference, fit, renew, rows, sections
from torchkiln.lock.asking import Chosen
from torchkiln.matrix import schema
from torchkiln.matrix.target import Extra, Flavour, Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.loopback import Index
    from torchkiln.lock.lockfile import Inputs, Lock, Pin

SMALL = {row.id: row for row in schema.load(Path(__file__).parents[1] / "matrix" / "small.yaml").targets}
NATIVE = "cp311-cp311-manylinux1_x86_64"


def plain(name: str) -> Target:
    """A row with few companions, to keep the index small."""
    return replace(SMALL[name], release=replace(SMALL[name].release, companions=("numpy<2.3", "ninja")))


ROW = plain("torch25-cu124")
DEVEL = replace(ROW, flavour=Flavour(id="devel", requirements=("cmake",)))
SERVE = replace(ROW, flavour=Flavour(id="serve", requirements=("web",)))
FAMILY = (ROW, DEVEL, SERVE)


@pytest.fixture
def index() -> Iterator[Index]:
    """An index on this machine with a toy trio and what goes with it."""
    with loopback.serve() as served:
        served.add("torch", "2.5.1", NATIVE, requires=("filelock",))
        served.add("torchvision", "0.20.1", NATIVE, requires=("torch==2.5.1",))
        served.add("torchaudio", "2.5.1", NATIVE, requires=("torch==2.5.1",))
        served.add("filelock", "3.0")
        served.add("numpy", "2.2.6")
        served.add("ninja", "1.11")
        served.add("cmake", "4.0")
        served.add("web", "1.0", requires=("filelock", "json>=1", "torch>=2"))
        served.add("json", "1.0")
        yield served


class Checkout:
    """A folder of locks, and what writes it."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder, self.index, self.home = folder / "locks", index, folder
        self.folder.mkdir()

    def lock(self, *chosen: Target, family: tuple[Target, ...] = FAMILY, upgrade: bool = False) -> str:
        """Write what is chosen; what changed, in words."""
        how = asking.of(self.index.environment(self.home), upgrade=upgrade)
        changed: list[difference.Difference] = []
        for one in renew.files(self.folder, family, chosen, how):
            one.path.write_text(sections.render(one.after))
            changed += difference.difference(one.path.name, one.before, one.after)
        return difference.plain(changed)

    def read(self, row: Target) -> Lock:
        """The lock of a row, held against it."""
        return rows.read(self.folder, row)

    def text(self, row: Target = ROW) -> str:
        """The file."""
        return (self.folder / row.lock_name).read_text()

    def versions(self, row: Target) -> dict[str, str]:
        """What a row pins."""
        return {pin.name: pin.version for pin in self.read(row).pins}


@pytest.fixture
def checkout(index: Index, tmp_path: Path) -> Checkout:
    """Nothing is locked in it."""
    return Checkout(tmp_path, index)


def test_a_flavour_adds_a_section_to_the_file_of_its_row(checkout: Checkout) -> None:
    """Only what it adds stands there; the lock of the row without it stays what it was."""
    checkout.lock(ROW)
    before = checkout.read(ROW)
    said = checkout.lock(DEVEL, SERVE)
    assert checkout.read(ROW) == before
    assert [[pin.name for pin in part] for part in checkout.read(DEVEL).parts[1:]] == [["cmake"]]
    assert [[pin.name for pin in part] for part in checkout.read(SERVE).parts[1:]] == [["json", "web"]]
    assert "127.0.0.1" not in checkout.text()
    assert said.splitlines() == [
        f"{ROW.lock_name}: nothing changed",
        f"{ROW.lock_name}, devel: 1 added, +0.0 MB",
        "  added    cmake 4.0 (+0.0 MB)",
        f"{ROW.lock_name}, serve: 2 added, +0.0 MB",
        "  added    json 1.0 (+0.0 MB)",
        "  added    web 1.0 (+0.0 MB)",
    ]


def test_locking_one_flavour_leaves_the_rest_alone(checkout: Checkout) -> None:
    """Newer companions on the index change neither what rows share nor another flavour's section."""
    checkout.lock(*FAMILY)
    before = checkout.text()
    for name, version in (("numpy", "2.2.9"), ("filelock", "3.9"), ("json", "1.9"), ("cmake", "4.9")):
        checkout.index.add(name, version)
    changed = replace(DEVEL, flavour=replace(DEVEL.flavour, requirements=("cmake>4",)))
    checkout.lock(changed, family=(ROW, changed, SERVE))
    assert checkout.versions(changed)["cmake"] == "4.9"
    assert checkout.text().replace("4.9", "4.0").count("\n") == before.count("\n")
    assert before.partition("# section: devel")[0] == checkout.text().partition("# section: devel")[0]
    assert before.partition("# section: serve")[2] == checkout.text().partition("# section: serve")[2]


def test_what_is_pinned_is_kept_as_long_as_it_will_do(checkout: Checkout) -> None:
    """Locking a row again changes nothing because an index moved on, and only what must when a bound did."""
    checkout.lock(*FAMILY)
    before = checkout.text()
    for name, version in (("numpy", "2.2.9"), ("ninja", "1.12"), ("json", "1.9"), ("filelock", "3.9")):
        checkout.index.add(name, version)
    assert checkout.lock(*FAMILY).count("nothing changed") == 3
    assert checkout.text() == before
    bound = [replace(row, release=replace(row.release, companions=("numpy>2.2.6", "ninja"))) for row in FAMILY]
    checkout.lock(*bound, family=tuple(bound))
    assert checkout.versions(bound[2]) == {
        "torch": "2.5.1",
        "torchvision": "0.20.1",
        "torchaudio": "2.5.1",
        "filelock": "3.0",
        "numpy": "2.2.9",
        "ninja": "1.11",
        "web": "1.0",
        "json": "1.0",
    }


def test_a_pinned_version_that_was_taken_back_gives_way(checkout: Checkout) -> None:
    """A yanked or vanished companion is replaced; one that a row has keeps additions to the row lockable."""
    checkout.lock(ROW)
    checkout.index.add("ninja", "1.12")
    checkout.index.add("tool", "1.0", requires=("ninja",))
    checkout.index.files["simple"]["ninja-1.11-py3-none-any.whl"].yanked = "broken"
    tool = replace(ROW, flavour=Flavour(id="tool", requirements=("tool",)))
    checkout.lock(tool, family=(ROW, tool))
    assert (checkout.versions(tool)["ninja"], checkout.versions(tool)["tool"]) == ("1.11", "1.0")
    checkout.lock(ROW)
    assert checkout.versions(ROW)["ninja"] == "1.12"
    del checkout.index.files["simple"]["numpy-2.2.6-py3-none-any.whl"]
    checkout.index.add("numpy", "2.2.4")
    checkout.lock(ROW)
    assert checkout.versions(ROW)["numpy"] == "2.2.4"


def test_an_upgrade_renews_companions_and_says_how(checkout: Checkout) -> None:
    """The newest of what is allowed, with what is new and what is gone; sections that lie on it follow."""
    checkout.lock(*FAMILY)
    checkout.index.add("numpy", "2.2.9", body=bytes(1_000_000))
    checkout.index.add("numpy", "2.3")
    checkout.index.add("filelock", "3.9")
    checkout.index.add("web", "1.1", requires=("router",))
    checkout.index.add("router", "1.0")
    assert checkout.lock(ROW, upgrade=True).splitlines() == [
        f"{ROW.lock_name}: 2 changed, +1.0 MB",
        "  changed  filelock 3.0 -> 3.9 (+0.0 MB)",
        "  changed  numpy 2.2.6 -> 2.2.9 (+1.0 MB)",
        f"{ROW.lock_name}, devel: nothing changed",
        f"{ROW.lock_name}, serve: nothing changed",
    ]
    assert [checkout.versions(row)["numpy"] for row in FAMILY] == ["2.2.9"] * 3
    assert checkout.lock(SERVE, upgrade=True).splitlines()[-4:] == [
        f"{ROW.lock_name}, serve: 1 removed, 1 added, 1 changed, +0.0 MB",
        "  removed  json 1.0 (+0.0 MB)",
        "  added    router 1.0 (+0.0 MB)",
        "  changed  web 1.0 -> 1.1 (+0.0 MB)",
    ]


def test_an_upgrade_never_changes_the_trio(checkout: Checkout) -> None:
    """Another build of the same torch is not taken, and other bytes under its name are an error."""
    checkout.lock(ROW)
    before = {pin.name: pin for pin in checkout.read(ROW).pins}
    checkout.index.add("torch", "2.5.1", f"2-{NATIVE}", requires=("filelock",), body=b"another build")
    checkout.lock(ROW, upgrade=True)
    assert {pin.name: pin for pin in checkout.read(ROW).pins} == before
    checkout.index.files["simple"].pop(f"torch-2.5.1-2-{NATIVE}.whl")
    checkout.index.add("torch", "2.5.1", NATIVE, requires=("filelock",), body=b"other bytes")
    with pytest.raises(HashMismatchError, match="the index serves other bytes as torch-2"):
        checkout.lock(ROW, upgrade=True)


def test_nothing_is_written_that_a_build_would_refuse(checkout: Checkout) -> None:
    """Whatever an index answers is held against the row before it becomes its lock."""
    real = asking.of(checkout.index.environment(checkout.home))

    def other(asked: Inputs, row: Target, above: Sequence[Pin], preferred: Sequence[Pin]) -> Chosen:
        pins = real.ask(asked, row, above, preferred).pins
        changed = [replace(pin, version="2.5.1+cu118") if pin.name == "torch" else pin for pin in pins]
        return Chosen(pins=tuple(changed), sources={})

    with pytest.raises(LockError, match=r"torch 2\.5\.1\+cu118 is built for cu118, the row is cu124"):
        renew.files(checkout.folder, FAMILY, (ROW,), replace(real, ask=other))


def test_a_file_that_is_none_is_written_anew(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    """One with the marks of a merge in it is no reason to refuse what mends it; other sections are lost, as is said."""
    checkout.lock(*FAMILY)
    before = checkout.text()
    (checkout.folder / ROW.lock_name).write_text(before.replace("ninja==", "<<<<<<< ours\nninja=="))
    with pytest.raises(LockError, match="is not a pin"):
        checkout.read(ROW)
    checkout.lock(*FAMILY)
    assert "is written as if it were not there" in " ".join(capsys.readouterr().err.split())
    assert checkout.text() == before


def test_a_section_that_no_row_wants_any_more_goes(checkout: Checkout) -> None:
    """Writing a file leaves out what a flavour needed that is gone."""
    checkout.lock(*FAMILY)
    checkout.lock(ROW, family=(ROW, SERVE))
    assert "# section: devel" not in checkout.text()
    assert checkout.read(SERVE)


def test_a_row_whose_shared_part_is_stale_is_locked_whole(checkout: Checkout) -> None:
    """Locking a flavour brings what lies below it up to date first, and other flavours with it."""
    checkout.lock(*FAMILY)
    moved = [replace(row, release=replace(row.release, companions=("numpy<2.3",))) for row in FAMILY]
    checkout.lock(moved[1], family=tuple(moved))
    for row in moved:
        assert "ninja" not in checkout.versions(row)


def test_nothing_is_written_for_a_flavour_that_does_not_go_with_its_row(checkout: Checkout) -> None:
    """What a flavour wants obeys the pins below it, or there is no lock."""
    checkout.lock(ROW)
    before = checkout.text()
    checkout.index.add("cmake", "4.0", requires=("filelock>3",))
    with pytest.raises(LockError, match="filelock"):
        checkout.lock(DEVEL)
    assert checkout.text() == before


def test_a_variant_with_a_section_asks_its_own_index(index: Index, tmp_path: Path) -> None:
    """An addition that wants torch gets the row's build of it, never the default index's."""
    small = replace(plain("torch213-cpu"), flavour=Flavour(id="serve", requirements=("web",)))
    tag = "cp311-cp311-manylinux_2_28_x86_64"
    index.add("torch", "2.13.0", tag, body=b"the CUDA build")
    pin = index.add("torch", "2.13.0+cpu", tag, folder="whl/cpu", requires=("filelock",))
    checkout = Checkout(tmp_path, index)
    how = asking.of(index.environment(tmp_path))
    with pytest.raises(HashMismatchError, match="is not the file that others have"):
        renew.files(checkout.folder, (small,), (small,), how)
    assert pin.version == "2.13.0+cpu"


def test_facts_lock_what_they_hold_and_name_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    """Of many rows, those that the facts do not cover are left out by name; of one, the error says what is missing."""
    known, unknown = SMALL["torch213-cpu"], replace(SMALL["torch213-cpu"], base=replace(ROW.base, python="3.14"))
    unknown = replace(unknown, base=replace(unknown.base, id="future"))
    unknown = replace(unknown, base=replace(unknown.base, default=False))
    assert renew.within_facts([known, unknown]) == (known,)
    assert "torch213-cpu-future is left out: the facts do not hold" in " ".join(capsys.readouterr().err.split())
    assert renew.within_facts([unknown]) == (unknown,)


@pytest.fixture
def extra(tmp_path: Path) -> Extra:
    """A user's list."""
    file = tmp_path / "Serve App.txt"
    file.write_text("web\n")
    return Extra(id="serveapp", requirements=("web",), file=file)


def test_additions_are_locked_beside_their_list(checkout: Checkout, extra: Extra) -> None:
    """Only what they add, for each flavour that they go on; the row's own file is written if there is none."""
    added = [replace(row, extra=extra) for row in (ROW, DEVEL)]
    checkout.lock(*added)
    beside = extra.file.with_name(f"Serve App.{ROW.lock_name}")
    assert sections.read(beside).parts.keys() == {"runtime-with-serveapp", "devel-with-serveapp"}
    assert [[pin.name for pin in part] for part in checkout.read(added[1]).parts[1:]] == [["cmake"], ["json", "web"]]
    own = checkout.text()
    checkout.index.add("numpy", "2.2.9")
    checkout.lock(added[0], upgrade=True)
    assert checkout.text() == own
    checkout.lock(ROW, upgrade=True)
    with pytest.raises(StaleLockError, match="the pins that it was resolved on top of changed"):
        checkout.read(added[0])
    assert fit.command(added[0]) == f"./inv lock --target {ROW.id} --extra-requirements '{extra.file}'"
