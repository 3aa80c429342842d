"""A row that the matrix has not → the lines of matrix.yaml that would give it one; pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchkiln.matrix.target import ARCH, GENERIC, RUNTIME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchkiln.matrix.schema import Matrix
    from torchkiln.matrix.target import Target

PLAIN = re.compile(r"[a-z-][\w./=-]*|\d+\.\d+\.\d+")
"""What YAML reads as text without quotes: words, and versions of three numbers."""


def parts(target: Target, family: Matrix) -> tuple[str, ...]:
    """What has to be declared before a product can name the row's parts: each section, and its new line."""
    stated = (
        ("releases", target.release.id, family.releases, _release(target)),
        ("accelerators", target.accelerator.id, family.accelerators, _accelerator(target, family)),
        ("gpus", target.gpu.id, family.gpus, _gpu(target, family)),
    )
    missing = [(section, name, fields) for section, name, there, fields in stated if name not in {*there, GENERIC}]
    return tuple(line for section, name, fields in missing for line in (f"{section}:", f"  {name}: {_flow(fields)}"))


def product(target: Target) -> tuple[str, ...]:
    """The product that is this one row."""
    fields: dict[str, object] = {"releases": [target.release.id], "accelerators": [target.accelerator.id]}
    fields |= {"gpus": [target.gpu.id]} if target.gpu.id != GENERIC else {}
    fields |= {"flavours": [target.flavour.id]} if target.flavour.id != RUNTIME else {}
    fields |= {"bases": [target.base.id]}
    fields |= {"arch": target.arch} if target.arch != ARCH else {}
    fields |= {"extra": str(target.extra.file)} if target.extra else {}
    return "targets:", f"  - {_flow(fields)}"


def _release(target: Target) -> Mapping[str, object]:
    release = target.release
    trio = {"torch": release.torch, "torchvision": release.torchvision, "torchaudio": release.torchaudio}
    return {name: version for name, version in trio.items() if version} | {"companions": list(release.companions)}


def _accelerator(target: Target, family: Matrix) -> Mapping[str, object]:
    """With the run options that the matrix has for others of its kind."""
    own = target.accelerator
    like = next((name for name, one in family.accelerators.items() if one.kind == own.kind), "")
    options = list(family.run_options.get(like, ()))
    version = {"version": own.version} if own.version else {}
    return {"kind": own.kind, **version} | ({"run_options": options} if options else {})


def _gpu(target: Target, family: Matrix) -> Mapping[str, object]:
    """Run as the matrix runs any GPU."""
    options = list(family.gpus[GENERIC].run_options) if GENERIC in family.gpus else []
    return {"arch": target.gpu.arch} | ({"run_options": options} if options else {})


def _flow(value: object) -> str:
    """A value in one line of YAML."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_flow(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    text = str(value)
    return text if PLAIN.fullmatch(text) else "'" + text.replace("'", "''") + "'"
