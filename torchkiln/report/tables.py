"""Tables for a terminal: their form, what checks answered, what a machine has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rich.table import Table

from torchkiln.matrix.nearest import changes
from torchkiln.matrix.target import GENERIC
from torchkiln.report.rows import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchkiln.doctor import Finding as Diagnosis
    from torchkiln.matrix.explain import Explained
    from torchkiln.matrix.target import Target
    from torchkiln.validation import ValidationReport

COLOURS = {"pass": "green", "fail": "red", "environment": "yellow", "not-run": "dim"}
COLOURS |= {"ok": "green", "missing": "red", "note": "yellow", "incomplete": "yellow"}


def columns(*names: str) -> Table:
    """Columns without lines around them, folded where they are too wide."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _coloured(word: str) -> str:
    return f"[{COLOURS.get(word, 'default')}]{word}[/]"


def plain(text: str) -> str:
    """Text that rich must not read as markup."""
    return text.replace("[", r"\[")


def explained(found: Explained) -> str:
    """Whether a row would be refused, why, and what to use instead."""
    target = found.target
    where = "in matrix.yaml" if found.listed else "not in matrix.yaml"
    lines = [
        f"{target.id}: {_judged(found)}; {where}",
        f"  {_parts(target)}",
    ]
    lines += [f"  excluded by {place}" for place in found.excluded]
    for finding in found.findings:
        lines += [f"  {finding.severity}: {finding.rule}: {finding.message}", f"    evidence: {finding.evidence}"]
        lines += [f"    instead: {finding.nearest}"] if finding.nearest else []
    return "\n".join([*lines, *_instead(found)])


def _judged(found: Explained) -> str:
    """Whether a row may be built."""
    warnings = sum(finding.severity == "warning" for finding in found.findings)
    if found.refused or not warnings:
        return "refused" if found.refused else "nothing is wrong with it"
    return f"it may be built, with {'a warning' if warnings == 1 else counted(warnings, 'warning')}"


def _instead(found: Explained) -> list[str]:
    """What to do about a row that can't be built as it stands."""
    target, near, offered = found.target, found.nearest, found.offered
    lines = []
    if near and near != offered:
        lines.append(f"nearest row that works: {near.id} ({_changed(target, near)})")
    if not found.refused and not found.listed:
        lines += _building(found)
    if offered:
        lines.append(f"nearest in matrix.yaml: {offered.id} ({_changed(target, offered) or 'nothing changes'})")
    elif found.refused or not found.listed:
        lines.append(
            "nothing in matrix.yaml runs in its place" if near or not found.refused else "no row works instead"
        )
    return lines


def _building(found: Explained) -> list[str]:
    """How a row that may be built gets into the matrix: lines to paste, parts before the row."""
    if not found.product:
        return ["to build it, lift the exclusion"]
    first = ["to build it, declare first in matrix.yaml", *(f"  {line}" for line in found.declare)]
    more = "then add" if found.declare else "to build it, add"
    then = [f"{more} it to a product in matrix.yaml, or as one of its own", *(f"  {line}" for line in found.product)]
    return [*(first if found.declare else []), *then]


def _changed(target: Target, row: Target) -> str:
    gpu = [] if row.gpu.id == target.gpu.id else [f"for {'any GPU' if row.gpu.id == GENERIC else row.gpu.id}"]
    same = replace(row, gpu=target.gpu, required=target.required)
    return ", ".join([*changes(target, same if gpu else row), *gpu])


def _parts(target: Target) -> str:
    """A row's parts in a line."""
    release, gpu, base = target.release, target.gpu, target.base
    trio = (("torchvision", release.torchvision), ("torchaudio", release.torchaudio))
    names = [f"torch {release.torch}", *(f"{name} {version}" for name, version in trio if version)]
    device = [gpu.arch, f"driver {gpu.driver}" if gpu.driver else ""]
    about = ", ".join(word for word in device if word)
    words = [", ".join(names), target.accelerator.variant, f"{gpu.id} ({about})" if about else gpu.id]
    return "; ".join([*words, target.flavour.id, f"{base.id}: Python {base.python}, glibc {base.glibc}", target.arch])


def validation(report: ValidationReport) -> Table:
    """Every check that applies and was asked, and why it did not pass."""
    table = columns("check", "level", "status", "s", "what")
    for check in report.checks:
        if check.applicable and check.reason != "not selected":
            said = f"{check.title}: {check.reason}" if check.reason else check.title
            said += " (unproven: never tried on a GPU)" if check.unproven else ""
            table.add_row(check.id, check.level, _coloured(check.status), f"{check.seconds:.1f}", plain(said))
    counts = ", ".join(f"{count} {status}" for status, count in report.summary.items())
    table.caption = f"{report.target} {report.digest[:19]} on {report.engine}: {_coloured(report.verdict)} ({counts})"
    table.caption_justify = "left"
    return table


def plainly(report: ValidationReport) -> str:
    """The verdict in a sentence."""
    if report.verdict == "pass":
        return f"{report.target}: pass, every required check ran and holds"
    if report.only_selected:
        return f"{report.target}: incomplete, {selected(report)}"
    missing = [check for check in report.checks if check.required and check.status != "pass"]
    missing = [check for check in missing if check not in report.unselected]
    missing = [check for check in missing if (check.status == "fail") == (report.verdict == "fail")]
    reasons = ", ".join(
        sorted({check.reason for check in missing if check.reason and "blocked by" not in check.reason})
    )
    names = ", ".join(check.id for check in missing)
    if report.verdict == "fail":
        return f"{report.target}: fail, by {names}"
    silent = f"{counted(len(missing), 'required check')} gave no answer ({names}{f': {reasons}' if reasons else ''})"
    others = f"{counted(len(report.unselected), 'other')} not selected"
    unmatched = f"required but unknown: {', '.join(report.unmatched)}"
    parts = ((silent, missing), (others, report.unselected), (unmatched, report.unmatched))
    why = "; ".join(text for text, there in parts if there) or "no check is required"
    return f"{report.target}: incomplete, it has not passed: {why}"


def selected(report: ValidationReport) -> str:
    """What it means that the selected checks passed."""
    passed = sum(check.status == "pass" for check in report.checks)
    others = counted(len(report.unselected), "required check")
    were = "was" if len(report.unselected) == 1 else "were"
    return (
        f"{counted(passed, 'selected check')} passed; the row's other {others} {were} not selected,"
        " so this is no verdict on the row"
    )


def doctor(findings: Iterable[Diagnosis]) -> Table:
    """What the machine has and lacks."""
    table = columns("what", "state", "detail")
    for finding in findings:
        said = f"{finding.detail}\n→ {finding.remedy}" if finding.remedy else finding.detail
        table.add_row(finding.name, _coloured(finding.state), plain(said))
    return table
