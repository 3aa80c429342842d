"""A user's additions: they fit on top of what the row has, or it is said before anything is downloaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import loopback
from tests.toys import make_wheel
from torchkiln.errors import LockError, PlanError
from torchkiln.lock import asking, basefit, baselock, lockfile, renew, rows, sections
from torchkiln.matrix import schema
from torchkiln.matrix.target import Extra, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.loopback import Index
    from torchkiln.lock.lockfile import Lock

SMALL = {row.id: row for row in schema.load(Path(__file__).parents[1] / "matrix" / "small.yaml").targets}
ROW = replace(SMALL["torch25-cu124"], release=replace(SMALL["torch25-cu124"].release, companions=("numpy<2.3",)))
NATIVE = "cp311-cp311-manylinux1_x86_64"


@pytest.fixture
def index() -> Iterator[Index]:
    """An index on this machine with a toy trio, and additions of every kind."""
    with loopback.serve() as served:
        served.add("torch", "2.4.1", NATIVE, requires=("filelock",))
        served.add("torch", "2.5.1", NATIVE, requires=("filelock",))
        for name, version in (("torchvision", "0.20.1"), ("torchaudio", "2.5.1")):
            served.add(name, version, NATIVE, requires=("torch==2.5.1",))
        served.add("filelock", "3.0")
        served.add("numpy", "2.2.6")
        served.add("numpy", "2.4.0")
        served.add("good", "1.0", requires=("torch>=2", "numpy"))
        served.add("oldie", "1.0", requires=("torch<2.5",))
        served.add("wrap", "1.0", requires=("oldie>=1",))
        served.add("mover", "1.0", requires=("numpy>=2.3",))
        served.add("alpha", "1.0", requires=("shared<2",))
        served.add("beta", "1.0", requires=("shared>=2",))
        served.add("shared", "1.0")
        served.add("shared", "2.0")
        served.add("foreign", "1.0", "cp312-cp312-manylinux1_x86_64")
        served.files["simple"]["source-1.0.tar.gz"] = loopback.sdist("source", "1.0", code="raise SystemExit(1)")
        yield served


@pytest.fixture
def folder(index: Index, tmp_path: Path) -> Path:
    """The folder of locks, with that of the row; what was downloaded for it is forgotten."""
    made = tmp_path / "locks"
    made.mkdir()
    lock(made, index, ROW)
    index.asked.clear()
    return made


def lock(folder: Path, index: Index, row: Target) -> Lock:
    """Write what is missing for a row."""
    for one in renew.files(folder, (row,), (row,), asking.of(index.environment(folder.parent))):
        one.path.write_text(sections.render(one.after))
    return rows.read(folder, row)


def with_(folder: Path, *requirements: str) -> Target:
    """The row with additions."""
    return replace(ROW, extra=Extra(id="app", requirements=requirements, file=folder.parent / "app.txt"))


def test_an_addition_brings_only_what_the_row_lacks(folder: Path, index: Index) -> None:
    """What it wants of the row is there already, in the row's version."""
    found = lock(folder, index, with_(folder, "good"))
    assert [[pin.name for pin in part] for part in found.parts[1:]] == [["good"]]
    text = folder.parent.joinpath(f"app.{ROW.lock_name}").read_text()
    assert "torch==" not in text
    assert rows.text(folder, with_(folder, "good")).endswith(text)


@pytest.mark.parametrize(
    ("requirements", "told"),
    [
        (("oldie",), "oldie: oldie asks for torch<2.5, and the row has torch 2.5.1"),
        (("good", "wrap"), "wrap: oldie asks for torch<2.5, and the row has torch 2.5.1"),
        (("mover",), "mover: mover asks for numpy>=2.3, and the row has numpy 2.2.6"),
        (("numpy>=2.3",), "numpy>=2.3: the row has numpy 2.2.6"),
        (("good", "filelock<3"), "filelock<3: the row has filelock 3.0"),
    ],
)
def test_an_addition_that_moves_what_the_row_has_is_a_planning_error(
    folder: Path, index: Index, requirements: tuple[str, ...], told: str
) -> None:
    """It names the addition, what is asked for, and by whom; no wheel was fetched to find out, none is written."""
    with pytest.raises(PlanError) as raised:
        lock(folder, index, with_(folder, *requirements))
    assert raised.value.what.startswith("additions do not go with torch25-cu124: ")
    assert told in raised.value.what
    assert raised.value.where == str(folder.parent / "app.txt")
    assert index.asked == []
    assert [path.name for path in folder.parent.glob("app.*")] == []


def test_an_addition_that_brings_what_the_row_goes_without_is_a_planning_error(index: Index, tmp_path: Path) -> None:
    """A row without torchvision gets none from an addition either: which build it would be is the row's to say."""
    folder = tmp_path / "locks"
    folder.mkdir()
    index.add("vision", "1.0", requires=("torchvision",))
    less = replace(ROW, release=replace(ROW.release, torchvision=""))
    row = replace(with_(folder, "good", "vision"), release=less.release)
    with pytest.raises(PlanError) as raised:
        lock(folder, index, row)
    told = "additions do not go with torch25-cu124: vision: it asks for torchvision, which the row goes without"
    assert raised.value.what == told
    assert raised.value.where == str(tmp_path / "app.txt")
    assert list(folder.iterdir()) == []


def test_an_index_is_not_asked_for_what_the_row_goes_without(index: Index, tmp_path: Path) -> None:
    """The index of a variant may be out of reach, where wheels at hand stand in for it: that is not the reason."""
    folder, hand = tmp_path / "locks", tmp_path / "hand"
    folder.mkdir()
    hand.mkdir()
    make_wheel(hand, "torch", "2.5.1+cu118", tag=NATIVE, requires=("filelock",))
    index.add("vision", "1.0", requires=("torchvision",))
    index.down.add("whl")
    less = replace(ROW.release, torchvision="", torchaudio="")
    accelerator = replace(ROW.accelerator, id="cu118", version="11.8", by_default=False)
    row = replace(with_(folder, "vision"), release=less, accelerator=accelerator)
    environment = {**index.environment(tmp_path), "TORCHKILN_FIND_LINKS": str(hand)}
    with pytest.raises(PlanError, match="vision: it asks for torchvision, which the row goes without"):
        renew.files(folder, (row,), (row,), asking.of(environment))


def test_a_list_that_asks_for_nothing_here_is_refused(folder: Path, index: Index) -> None:
    """Markers that never hold make no image; one line that holds does, and brings only what holds."""
    never = 'good; sys_platform == "win32"'
    with pytest.raises(PlanError, match=r"asks for nothing here: .*Python 3.11 on x86_64") as raised:
        lock(folder, index, with_(folder, never))
    assert raised.value.where == str(folder.parent / "app.txt")
    found = lock(folder, index, with_(folder, never, 'shared; python_version >= "3.11"'))
    assert [[pin.name for pin in part] for part in found.parts[1:]] == [["shared"]]


@pytest.mark.parametrize(("name", "version"), [("source", "1.0"), ("foreign", "1.0")])
def test_an_addition_without_a_wheel_is_named(folder: Path, index: Index, name: str, version: str) -> None:
    """Nothing is built from source; the platform that has no wheel is said."""
    with pytest.raises(LockError) as raised:
        lock(folder, index, with_(folder, "good", name))
    assert f"{name} {version}: no wheel for Python 3.11, x86_64, glibc 2.36" in raised.value.what
    assert raised.value.where.endswith("app.txt")


def test_additions_that_contradict_each_other_are_not_laid_to_the_row(folder: Path, index: Index) -> None:
    """The error is the resolver's, and it is the list that has to change."""
    with pytest.raises(LockError, match="alpha") as raised:
        lock(folder, index, with_(folder, "alpha", "beta"))
    assert raised.value.remedy == f"change {folder.parent / 'app.txt'}"


def test_an_index_that_fails_is_called_that(folder: Path, index: Index) -> None:
    """Then nothing is known about the additions."""
    index.down.add("simple")
    with pytest.raises(LockError) as raised:
        lock(folder, index, with_(folder, "good"))
    assert "UV_DEFAULT_INDEX" in raised.value.remedy


def test_additions_are_asked_for_only_where_they_are_not_locked(folder: Path, index: Index) -> None:
    """Fresh ones need no index; another list, or other pins below, make them missing; a row without them is none."""
    row = with_(folder, "good")
    assert renew.missing_additions(folder, [row, ROW]) == (row,)
    lock(folder, index, row)
    assert renew.missing_additions(folder, [row, ROW]) == ()
    assert renew.missing_additions(folder, [with_(folder, "good", "shared")])
    path = folder / ROW.lock_name
    file = sections.read(path)
    assert file.common
    moved = [replace(pin, version="3.1") if pin.name == "filelock" else pin for pin in file.common.pins]
    moved = [
        replace(pin, filename=pin.filename.replace("3.0", pin.version)) if pin.name == "filelock" else pin
        for pin in moved
    ]
    path.write_text(sections.render(replace(file, common=lockfile.make(file.common.asked, moved, "uv 1"))))
    assert renew.missing_additions(folder, [row]) == (row,)


def test_a_row_that_is_not_locked_itself_says_so(tmp_path: Path) -> None:
    """Additions come on top of a lock; the error is about that one."""
    with pytest.raises(LockError, match="torch25-cu124 is unlocked"):
        renew.missing_additions(tmp_path, [with_(tmp_path, "good")])


def test_additions_of_the_matrix_are_locked_beside_their_list(folder: Path, index: Index, tmp_path: Path) -> None:
    """`extra: FILE` in a product is the same as --extra-requirements, with the file named from where the matrix is."""
    text = (Path(__file__).parents[1] / "matrix" / "small.yaml").read_text()
    text = text.replace(
        "{releases: [torch25, torch26], accelerators: [cu124]",
        "{releases: [torch25], accelerators: [cu124], extra: app.txt",
    )
    (tmp_path / "matrix.yaml").write_text(text)
    (tmp_path / "app.txt").write_text("good\n")
    stated = {row.id: row for row in schema.load(tmp_path / "matrix.yaml").targets}["torch25-cu124-with-app"]
    row = replace(stated, release=ROW.release)
    listed = baselock.make([("python3.11", "3.11.2-6")], basefit.asked(row.base, row.arch))
    (folder / row.base.lock_name).write_text(baselock.render(listed))
    assert rows.state(folder, row) == "unlocked"
    assert "good" in {pin.name for pin in lock(folder, index, row).pins}
    assert rows.state(folder, row) == "locked"
    assert (tmp_path / f"app.{ROW.lock_name}").exists()
    (tmp_path / "app.txt").write_text("good\nshared\n")
    again = {row.id: row for row in schema.load(tmp_path / "matrix.yaml").targets}["torch25-cu124-with-app"]
    assert rows.state(folder, replace(again, release=ROW.release)) == "stale"
