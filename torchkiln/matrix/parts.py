"""Parts of rows that matrix.yaml need not state: releases, accelerators and GPUs as the facts know them; pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from torchkiln.matrix import facts
from torchkiln.matrix.target import Accelerator, Flavour, Gpu, Release

if TYPE_CHECKING:
    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.schema import Matrix


def accelerator(variant: str) -> Accelerator | None:
    """The accelerator behind a variant's name, before the facts complete it."""
    if variant == "cpu":
        return Accelerator(id="cpu", kind="cpu")
    if found := re.fullmatch(r"cu(\d+)(\d)", variant):
        return Accelerator(id=variant, kind="cuda", version=f"{found[1]}.{found[2]}")
    if found := re.fullmatch(r"rocm([\d.]+)", variant):
        return Accelerator(id=variant.replace(".", ""), kind="rocm", version=found[1])
    return None


def minor(torch: str) -> tuple[int, ...]:
    """What the releases of one id have in common: (2, 5) of 2.5.1."""
    return tuple(int(part) for part in torch.split(".")[:2])


def release(torch: str, known: Facts, like: Release, identifier: str = "") -> Release:
    """A torch with its own trio, otherwise as another release; what that one goes without stays away."""
    pair = facts.release(known, torch)
    return replace(
        like,
        id=identifier or "torch" + "".join(str(part) for part in minor(torch)),
        torch=torch,
        torchvision=pair.torchvision if pair and like.torchvision else "",
        torchaudio=pair.torchaudio if pair and like.torchaudio else "",
    )


def gpu(identifier: str, known: Facts, like: Gpu) -> Gpu | None:
    """A GPU that the facts have a profile of, run as another is."""
    profile = next((row for row in known.gpus if row.id == identifier), None)
    return Gpu(id=identifier, arch=profile.target, run_options=like.run_options) if profile else None


def flavour(name: str, accelerator: str, family: Matrix) -> Flavour:
    """A flavour as it is for an accelerator, which the family need not declare."""
    stated = family.flavours.get(name)
    if not stated:
        return Flavour(id=name)
    if accelerator in stated:
        return stated[accelerator]
    one, *others = stated.values()
    if all(other == one for other in others):
        return one
    able = ", ".join(key for key, value in stated.items() if not value.unavailable)
    return Flavour(id=name, packages=one.packages, unavailable=f"it is stated for {able} only")
