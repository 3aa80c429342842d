"""`./inv doctor` and `./inv gc`: what this machine has, and what its cache may forget."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from invoke.tasks import task

from torchkiln import home as homes
from torchkiln.commands import checkout
from torchkiln.commands.exits import guarded
from torchkiln.commands.options import JSON
from torchkiln.commands.output import show
from torchkiln.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from invoke.context import Context


@task(help=JSON)
@guarded
def doctor(_: Context, json: bool = False) -> None:
    """Tell what this machine has and lacks; exits 14 if no image can be built or run here."""
    from torchkiln import doctor as machine
    from torchkiln import rootfs
    from torchkiln.engines import table
    from torchkiln.oci.store import Store
    from torchkiln.report import tables

    home = homes.locate(os.environ)
    engines = table.engines(Store(home.store), functools.partial(rootfs.tree, home, Store(home.store)))
    findings = machine.diagnose(home, engines, os.environ)
    show([finding.to_json() for finding in findings] if json else tables.doctor(findings))
    if not machine.able(findings):
        raise SystemExit(HostError.exit_code)


@task(
    positional=[],
    iterable=["forget"],
    help={"forget": "name of an image that is not needed any more; may be repeated", "wheels": "downloads too"},
)
@guarded
def gc(_: Context, forget: Sequence[str], wheels: bool = False) -> None:
    """Remove from the cache what no named image needs; names stay until they are forgotten."""
    from torchkiln import garbage
    from torchkiln.report.rows import counted

    collected = garbage.collect(checkout.project().home, forget=forget, wheels=wheels)
    show(f"removed {counted(collected.files, 'file')}, {collected.size / 1e9:.2f} GB")
