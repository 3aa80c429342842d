"""Machines share layers through a registry: what one has pushed, another composes without wheels, and a third runs."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.kiln import ROOT, ROW
from tests.oci.test_push_registry import served
from tests.wire import counted
from torchkiln import finished, layerlocking, pipeline, transfer
from torchkiln import home as homes
from torchkiln.engines import Command, Limits
from torchkiln.errors import ImageError, StoreError, UsageError
from torchkiln.lock import baselock
from torchkiln.matrix import schema
from torchkiln.matrix.target import select
from torchkiln.pipeline import Wishes
from torchkiln.project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kiln import Row
    from torchkiln.matrix.target import Target
    from torchkiln.oci.digest import Digest

pytestmark = [pytest.mark.sandbox, pytest.mark.registry]
"""But not `network`: nothing here may reach another machine."""
FEW = 2 << 20
"""Bytes that composing moves at most, requests and all."""
CHECKS = ("static.*", "torch.import", "lock.installed")


@dataclass(frozen=True, slots=True)
class Fleet:
    """A checkout whose row was pushed by its first machine."""

    root: Path
    row: Target
    host: str
    digest: Digest

    @property
    def where(self) -> str:
        """The repository."""
        return f"{self.host}/team/torch"

    def machine(self, name: str) -> Project:
        """One with nothing in its cache and no wheels at hand."""
        home = homes.prepare(homes.Home(self.root / name))
        return Project(root=self.root, home=home, environment={"HOME": str(self.root), "PATH": os.environ["PATH"]})


@pytest.fixture(scope="module")
def fleet(built: Row, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Layers are locked as the first machine has them, its base too, whatever the archive holds by now."""
    root = tmp_path_factory.mktemp("fleet")
    shutil.copytree(ROOT / "images", root / "images")
    shutil.copytree(ROOT / "validate", root / "validate")
    (row,) = select(schema.load(ROOT / "matrix.yaml").targets, [ROW])
    first = Project(root=root, home=homes.Home(built.kiln.home), environment=dict(os.environ))
    made = pipeline.base(first, row)
    if made.difference:
        first.base_lock(row).write_text(baselock.render(made.packages))
    layerlocking.lock_layers(first, [row])
    with served(root) as host:
        done = pipeline.build(first, row, None, Wishes(push=f"{host}/team/torch:one"))
        yield Fleet(root, row, host, done.digest)
    shutil.rmtree(root)


def test_a_machine_with_nothing_composes_without_moving_layers(fleet: Fleet) -> None:
    """No wheel, no base, no compiler: the same digest under another tag, less than 2 MB on the wire, nothing kept."""
    work = fleet.machine("second")
    with counted(fleet.host) as wire:
        place = f"{wire.host}/team/torch"
        composed = pipeline.build(work, fleet.row, None, Wishes(push=f"{place}:two", origin=place))
    assert composed.digest == fleet.digest
    assert composed.pushed
    assert composed.pushed.digest == fleet.digest
    assert set(composed.stages) == {"compose", "push"}
    assert 0 < wire.moved < FEW
    assert list(work.home.wheels.iterdir()) == []
    assert not composed.here
    with pytest.raises(StoreError, match="is not built") as raised:
        finished.manifest_of(work, fleet.row)
    assert "--from" in raised.value.remedy


def test_the_command_line_composes(built: Row) -> None:
    """`--from` names a repository, not a tag; it can't be had together with making everything anew."""
    asked = ("build", "--target", ROW, "--no-validate", "--from", "127.0.0.1:9/x:tag")
    assert "--from HOST/REPOSITORY" in built.kiln.refused(*asked, status=ImageError.exit_code)
    assert "contradict" in built.kiln.refused(*asked, "--verify", status=UsageError.exit_code)


def test_another_repository_of_the_registry_gets_layers_without_moving_them(fleet: Fleet) -> None:
    """They are mounted."""
    work = fleet.machine("third")
    with counted(fleet.host) as wire:
        wishes = Wishes(push=f"{wire.host}/team/next:one", origin=f"{wire.host}/team/torch")
        composed = pipeline.build(work, fleet.row, None, wishes)
    assert composed.digest == fleet.digest
    assert composed.pushed
    assert "mounted" in composed.pushed.blobs.values()
    assert wire.moved < FEW


def test_what_was_composed_runs(fleet: Fleet) -> None:
    """Pulled by digest by a machine that has nothing, it imports torch in the sandbox and holds what is checked."""
    work = fleet.machine("fourth")
    received = transfer.pull(work, f"{fleet.where}@{fleet.digest}")
    assert (received.name, received.digest) == (ROW, fleet.digest)
    with finished.subject(work, fleet.row) as subject:
        engine = pipeline.engine(work, "sandbox", subject)
        command = Command(argv=("python", "-c", "import torch; print(torch.__version__)"), limits=Limits(seconds=300))
        outcome = engine.run(subject.image, command)
        assert (outcome.status, outcome.stdout.decode().strip()) == (0, "2.13.0+cpu"), outcome.stderr.decode()
        report = pipeline.validate(work, fleet.row, subject, engine, checks=CHECKS)
    answers = {check.id: check.status for check in report.checks if check.status != "not-run"}
    assert set(answers.values()) == {"pass"}
    assert {"static.labels", "torch.import"} <= answers.keys()
