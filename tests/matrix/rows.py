"""Rows for tests of lint: as the matrix would make them, then changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torchkiln.matrix import facts, parts, rules, schema
from torchkiln.matrix.mend import mended
from torchkiln.matrix.target import Flavour, Target

KNOWN = facts.read()
SMALL = schema.load(Path(__file__).with_name("small.yaml"))
ROW = SMALL.targets[0]
PACKAGES = ("python3", "python3-venv", "python3-dev", "gcc", "g++", "ca-certificates", "tini")


def row(torch: str, variant: str, **changes: str) -> Target:
    """A row of a torch with its own trio and what it needs; lists are words with spaces between."""
    stated = parts.accelerator(variant)
    assert stated
    own = parts.release(torch, KNOWN, replace(ROW.release, torchaudio="2.5.1"))
    plain = replace(ROW, release=own, accelerator=facts.complete(KNOWN, stated, torch))
    return changed(mended(plain, KNOWN), **changes)


def changed(plain: Target, **changes: str) -> Target:
    """A row with some values changed, by the names of their fields."""
    trio = {name: changes[name] for name in ("torchvision", "torchaudio") if name in changes}
    lists = {
        name: tuple(changes[name].split()) for name in ("companions", "packages", "requirements") if name in changes
    }
    companions = lists.get("companions", plain.release.companions)
    gpu = replace(
        plain.gpu,
        id=changes.get("gpu", "some" if "arch" in changes else plain.gpu.id),
        arch=changes.get("arch", ""),
        driver=changes.get("driver", ""),
        run_options=tuple(changes["options"].split()) if "options" in changes else plain.gpu.run_options,
    )
    odd = changes.keys() & {"python", "glibc"}  # as in no suite that the facts know
    base = replace(
        plain.base,
        suite=changes.get("suite", "" if odd else plain.base.suite),
        python=changes.get("python", plain.base.python),
        glibc=changes.get("glibc", plain.base.glibc),
        packages=lists.get("packages", PACKAGES),
    )
    flavour = Flavour(id="extra", requirements=lists["requirements"]) if "requirements" in lists else plain.flavour
    return replace(
        plain,
        release=replace(plain.release, companions=companions, **trio),
        gpu=gpu,
        base=base,
        flavour=flavour,
        arch=changes.get("machine", plain.arch),
    )


def told(target: Target) -> list[tuple[str, str]]:
    """(rule, severity) of every finding."""
    return [(finding.rule, finding.severity) for finding in rules.check(target, KNOWN)]
