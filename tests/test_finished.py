"""An image that was built is used for the row it was built for, and for no other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.kiln import ROOT
from torchkiln import finished
from torchkiln import home as homes
from torchkiln.errors import ImageError, StoreError
from torchkiln.home import Home
from torchkiln.lock import fit, lockfile, rows, sections
from torchkiln.lock.lockfile import Pin
from torchkiln.lock.sections import LockFile
from torchkiln.matrix import schema
from torchkiln.matrix.target import Extra
from torchkiln.oci.image import Config, Image
from torchkiln.plan import LOCK_LABEL, ROW_LABEL
from torchkiln.project import Project

if TYPE_CHECKING:
    from pathlib import Path

    from torchkiln.matrix.target import Target

MATRIX = schema.load(ROOT / "matrix.yaml")
PLAIN = next(row for row in MATRIX.targets if row.id == "torch25-cu124")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """This checkout with an empty cache."""
    return Project(root=ROOT, home=homes.prepare(Home(tmp_path / "home")), environment={})


def built(project: Project, row: Target, lock: str) -> None:
    """An image of a row, made from the lock with that digest; nothing is in it."""
    project.store.put_image(Image(config=Config(labels={LOCK_LABEL: lock}), layers=()), row.id)


def opened(project: Project, row: Target) -> None:
    """Open the built image of a row, then hold its digests."""
    with finished.subject(project, row) as found:
        assert found.image.config.labels
    assert finished.verify(project, row) == ()


def test_an_image_of_another_lock_is_used_with_a_warning(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """It says which command builds it anew; one of the row's own lock is used without a word."""
    built(project, PLAIN, rows.read(project.locks, PLAIN).digest)
    opened(project, PLAIN)
    assert "warning" not in capsys.readouterr().err
    built(project, PLAIN, "sha256:" + "0" * 64)
    opened(project, PLAIN)
    said = " ".join(capsys.readouterr().err.split())
    assert f"{PLAIN.id} was built from another lock than the row has now" in said
    assert f"./inv build --target {PLAIN.id} builds it anew" in said


def added(project: Project, file: Path, *names: str) -> Target:
    """A row with additions, locked beside their list, each of them a wheel that nobody has."""
    row = replace(PLAIN, extra=Extra(id=file.stem, requirements=names, file=file))
    pins = [
        Pin(name=name, version="1", sha256="0" * 64, filename=f"{name}-1-py3-none-any.whl", size=1) for name in names
    ]
    asked = fit.added(row, names, rows.read(project.locks, PLAIN).pins)
    file.parent.mkdir(exist_ok=True)
    (section,) = fit.additions(row)
    lock = LockFile(sections={section: lockfile.make(asked, pins, "uv")})
    fit.file_of(row, section, project.locks).write_text(sections.render(lock))
    return row


def test_an_image_of_another_list_of_the_same_name_is_not_used(project: Project, tmp_path: Path) -> None:
    """Two files in other folders, or one that was edited since: the image is built again, never the wrong one run."""
    one, other = (added(project, tmp_path / name / "pure.txt", name) for name in ("one", "other"))
    assert one.id == other.id
    built(project, one, rows.read(project.locks, one).digest)
    opened(project, one)
    edited = replace(one, extra=Extra(id="pure", requirements=("one", "two"), file=tmp_path / "one" / "pure.txt"))
    for row in (other, edited):
        for use in (opened, finished.verify):
            with pytest.raises(StoreError, match="was built from another lock") as raised:
                use(project, row)
            assert row.extra
            assert raised.value.where == str(row.extra.file)
            assert raised.value.remedy == f"./inv build {fit.options(row)}"


def test_an_image_of_another_row_is_named(project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may have got this row's name when it was pulled: looked at with a warning, and not taken for a user's list."""
    image = Image(config=Config(labels={ROW_LABEL: "torch26-cu124"}), layers=())
    project.store.put_image(image, PLAIN.id)
    opened(project, PLAIN)
    said = " ".join(capsys.readouterr().err.split())
    assert f"warning: {PLAIN.id} is an image of another row here: its label says torch26-cu124" in said
    with pytest.raises(StoreError, match="another row") as raised:
        finished.hold_row(project, PLAIN)
    assert raised.value.remedy.startswith(f"./inv build --target {PLAIN.id}; or for that image: ./inv pull without")
    assert raised.value.remedy.endswith("--target torch26-cu124")
    more = added(project, tmp_path / "more.txt", "one")
    project.store.put_image(image, more.id)
    with pytest.raises(StoreError, match="another row"):
        opened(project, more)


@pytest.mark.parametrize("scheme", ["", "docker://"])
def test_an_image_of_a_registry_is_pulled_first(project: Project, scheme: str) -> None:
    """Whoever names one to validate is told both commands, for the row in question."""
    with pytest.raises(ImageError) as raised, finished.subject(project, PLAIN, f"{scheme}registry.example/torch:next"):
        pass
    commands = f"./inv pull registry.example/torch:next, then ./inv validate --target {PLAIN.id} without --image"
    assert raised.value.remedy.endswith(commands)


def test_a_damaged_image_elsewhere_is_named_in_what_tells_more(project: Project) -> None:
    """The command can be run as it is written."""
    built(project, PLAIN, "")
    reference = f"oci:{project.home.store}:{PLAIN.id}"
    manifest = project.store.refs()[PLAIN.id].digest
    project.store.discard(manifest)
    with pytest.raises(StoreError) as raised, finished.subject(project, PLAIN, reference):
        pass
    assert f"./inv verify --image {reference} tells all that is wrong" in raised.value.remedy
