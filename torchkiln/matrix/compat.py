"""Target and facts → findings: whether a row can work, before anything is downloaded; pure."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from torchkiln.errors import MatrixError
from torchkiln.matrix import facts
from torchkiln.matrix.rules import RULES, Finding
from torchkiln.matrix.target import Accelerator, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchkiln.matrix.facts import Facts


def lint(target: Target, known: Facts) -> tuple[Finding, ...]:
    """Everything the rules say about a row; an error without a nearest value names the nearest row that has none."""
    found = _findings(target, known)
    if all(finding.severity != "error" or finding.nearest for finding in found):
        return found
    row = nearest_row(target, known)
    return tuple(
        replace(finding, nearest=row) if finding.severity == "error" and not finding.nearest else finding
        for finding in found
    )


def refuse(target: Target, known: Facts) -> None:
    """MatrixError with every error of a row; nothing if it may be built."""
    errors = [finding for finding in lint(target, known) if finding.severity == "error"]
    if errors:
        lines = "".join(f"\n  {finding.rule}: {finding.message} ({finding.evidence})" for finding in errors)
        near = next((finding.nearest for finding in errors if finding.nearest), "")
        raise MatrixError(
            f"{target.id} cannot work:{lines}", where=f"matrix.yaml, {target.id}", remedy=f"use {near}" if near else ""
        )


def _findings(target: Target, known: Facts) -> tuple[Finding, ...]:
    return tuple(finding for rule in RULES for finding in rule(target, known))


def nearest_row(target: Target, known: Facts) -> str:
    """Id of the row without errors that changes least: another variant of this torch, else another torch."""
    return next((row.id for row in alternatives(target, known) if not wrong(row, known)), "")


def wrong(target: Target, known: Facts) -> bool:
    """Whether a row has an error."""
    return any(finding.severity == "error" for finding in _findings(target, known))


def alternatives(target: Target, known: Facts) -> Iterator[Target]:
    """The same row with every other variant and torch of its kind, the least changed first."""
    own = target.release.torch
    newest = {_numbers(row.torch)[:2]: row.torch for row in known.releases}  # a release id stands for its last patch
    others = sorted((torch for torch in newest.values() if torch != own), key=lambda torch: _far(torch, own))
    for torch in (own, *others):
        release = _release(target, torch, known)
        for variant in sorted(facts.variants(known, torch), key=lambda name: _far(name, target.accelerator.variant)):
            stated = accelerator(variant)
            if stated and stated.kind == target.accelerator.kind:
                yield replace(release, accelerator=facts.complete(known, stated, torch))


def _release(target: Target, torch: str, known: Facts) -> Target:
    """The same row with another torch and its own trio."""
    pair = facts.release(known, torch)
    if pair is None or torch == target.release.torch:
        return target
    identifier = "torch" + "".join(torch.split(".")[:2])
    vision = pair.torchvision if target.release.torchvision else ""
    audio = pair.torchaudio if target.release.torchaudio else ""
    changed = replace(target.release, id=identifier, torch=torch, torchvision=vision, torchaudio=audio)
    return replace(target, release=changed)


def accelerator(variant: str) -> Accelerator | None:
    """The accelerator behind a variant's name, before the facts complete it."""
    if variant == "cpu":
        return Accelerator(id="cpu", kind="cpu")
    if found := re.fullmatch(r"cu(\d+)(\d)", variant):
        return Accelerator(id=variant, kind="cuda", version=f"{found[1]}.{found[2]}")
    if found := re.fullmatch(r"rocm([\d.]+)", variant):
        return Accelerator(id=variant.replace(".", ""), kind="rocm", version=found[1])
    return None


def _far(one: str, other: str) -> tuple[int, ...]:
    """How far apart two versions or variants are, number by number."""
    pairs = zip(_numbers(one), _numbers(other), strict=False)
    return tuple(abs(left - right) for left, right in pairs)


def _numbers(text: str) -> tuple[int, ...]:
    cuda = re.fullmatch(r"cu(\d+)(\d)", text)
    numbers = [int(cuda[1]), int(cuda[2])] if cuda else [int(number) for number in re.findall(r"\d+", text)]
    return (*numbers, 0, 0, 0)[:3]


def to_json(target: Target, findings: tuple[Finding, ...]) -> dict[str, Any]:
    """One row of `matrix --json`: its fields and what lint finds."""
    fields: dict[str, Any] = {"id": target.id, "lock": target.lock_name, **asdict(target)}
    return {**fields, "findings": [asdict(finding) for finding in findings]}
