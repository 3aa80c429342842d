"""Command line: parse flags, call one function, print one result.

Results go to stdout (`--json` for machines), progress to stderr; errors become exit codes here and nowhere else.
Imports that cost time stand in the tasks that need them, so that `./inv matrix` answers at once.
"""

from __future__ import annotations

import functools
import io
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.tasks import task

from torchkiln import home as homes
from torchkiln import process
from torchkiln.errors import (
    HostError,
    MatrixError,
    TorchkilnError,
    UsageError,
    ValidationFailedError,
    ValidationIncompleteError,
    VerifyError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from invoke.context import Context

    from torchkiln.matrix.schema import Matrix
    from torchkiln.matrix.target import Target
    from torchkiln.oci.push import Pushed
    from torchkiln.pipeline import Built
    from torchkiln.project import Project
    from torchkiln.report.rows import Row
    from torchkiln.validation import ValidationReport

ROOT = Path(__file__).resolve().parent
README = ROOT / "README.md"
LOCKS = ROOT / "images" / "locks"
TARGET = {"target": "id or glob of ./inv matrix; may be repeated"}
JSON = {"json": "one JSON document on stdout"}
FORMATS = ("table", "json", "markdown", "github")
PLAIN = {"plain_http": "host that may speak plain HTTP, as this machine's registries do anyway; may be repeated"}
WHOLE = {"verify": "read every byte back from the registry and hash it; else it is asked for the blobs' sizes"}
ENGINE = {"engine": "auto, docker or sandbox"}
MADE_FOR = {
    "for_": "a publish target of matrix.yaml: its compression, and its limits of layers",
    "compression": "gzip, zstd or zstd:LEVEL, instead of the row's or the publish target's",
}
EXTRA = {"extra_requirements": "file of requirements that are added to the rows, one a line"}


def guarded(function: Callable[..., None]) -> Callable[..., None]:
    """Turn errors into one message on stderr and their exit code."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401  invoke passes what it parsed
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: children and temporaries go
        print_anything()
        try:
            function(*args, **kwargs)
            sys.stdout.flush()
        except TorchkilnError as error:
            leave(f"error: {error}", error.exit_code)
        except KeyboardInterrupt:
            leave("interrupted: nothing is half done, run it again to go on", 130)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; say nothing more
            raise SystemExit(141) from None
        except OSError as error:
            if error.errno is None:
                raise
            told = HostError(error.strerror or str(error), where=str(error.filename or ""), remedy="./inv doctor")
            leave(f"error: {told}", told.exit_code)

    return wrapper


def print_anything() -> None:
    """Where a terminal's encoding has no ≥ or …, a question mark stands for it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def leave(message: str, code: int) -> None:
    """Say why and exit."""
    sys.stderr.write(f"{message}\n")
    raise SystemExit(code) from None


def show(result: object) -> None:
    """A result: a table for people, else one JSON document."""
    from rich.console import Console, Group
    from rich.table import Table

    if isinstance(result, (Table, Group)):
        Console(width=width(), highlight=False).print(result)
    else:
        sys.stdout.write((result if isinstance(result, str) else document(result)) + "\n")


def width() -> int:
    """Columns of the terminal; plenty where there is none."""
    from rich.console import Console

    from torchkiln.report import listing

    return Console().width if sys.stdout.isatty() else listing.WIDE


def document(result: object) -> str:
    """A result as JSON, whose numbers are finite, in letters that stdout has."""
    letters = (sys.stdout.encoding or "").lower() not in {"utf-8", "utf8"}
    try:
        return json.dumps(result, indent=2, ensure_ascii=letters, allow_nan=False)
    except ValueError:
        raise MatrixError(
            "a figure is no finite number, and JSON has no word for it",
            where="matrix.yaml",
            remedy="state its thresholds as numbers",
        ) from None


def show_report(report: ValidationReport | None) -> None:
    """Every check, and the verdict in a sentence."""
    from torchkiln.report import tables

    if report is None:
        show("not validated (--no-validate): nothing counts as passed")
    else:
        show(tables.validation(report))
        show(tables.plainly(report))


def project() -> Project:
    """This checkout with the user's cache."""
    from torchkiln.project import Project

    return Project(root=ROOT, home=homes.prepare(homes.locate(os.environ)), environment=dict(os.environ))


def one_row(
    patterns: Sequence[str], extra: str = "", for_: str | None = None, compression: str | None = None
) -> Target:
    """The one row of --target, where several make no sense."""
    first, *others = made_for(rows(patterns, extra=extra), for_, compression)
    if others:
        raise UsageError("one target at a time", where=" ".join(patterns), remedy=f"--target {first.id}")
    return first


def rows(patterns: Sequence[str], family: Matrix | None = None, extra: str = "") -> tuple[Target, ...]:
    """The rows of --target, with --extra-requirements on top; none is an error, since all of them would be a lot."""
    from torchkiln.matrix import schema

    if not patterns:
        raise UsageError("no target was named", remedy="--target ID or --target 'GLOB'; ./inv matrix lists them")
    return selected(family or schema.load(ROOT / "matrix.yaml"), patterns, extra)


def made_for(
    chosen: Sequence[Target], for_: str | None, compression: str | None, family: Matrix | None = None
) -> tuple[Target, ...]:
    """The rows as they are made for --for and --compression."""
    from torchkiln.matrix import publishing, schema
    from torchkiln.matrix import target as targets
    from torchkiln.oci import compression as compressions

    if for_ == "":  # a variable that was not set is no wish
        raise UsageError("--for is empty", remedy="--for NAME, of publish_targets in matrix.yaml, or without it")
    asked = None if compression is None else compressions.parse(compression)
    declared = (family or schema.load(ROOT / "matrix.yaml")).publish_targets if for_ else {}
    place = publishing.find(declared, for_ or "")
    return tuple(targets.publishing(row, place, asked) for row in chosen)


def hold_apart(*kinds: Mapping[str, bool]) -> None:
    """UsageError for options of two kinds, of which only one can be meant."""
    given = [names for kind in kinds if (names := [name for name, wanted in kind.items() if wanted])]
    if len(given) > 1:
        words = " and ".join(names[0] for names in given)
        raise UsageError(f"{words} contradict each other", remedy=f"{given[0][0]} alone, or without it")


def selected(family: Matrix, patterns: Sequence[str], extra: str = "") -> tuple[Target, ...]:
    """The rows of --target, or all if there is none; a variable that was not set is told as such."""
    from torchkiln.matrix import extra as additions
    from torchkiln.matrix.target import select

    if not all(patterns):
        raise UsageError("--target is empty", remedy="--target ID or --target 'GLOB'; ./inv matrix lists them")
    if extra:
        return additions.select(family.targets, patterns, additions.read(Path(extra)))
    return select(family.targets, patterns)


def listed(patterns: Sequence[str]) -> list[Row]:
    """The rows of --target with their findings and the state of their locks."""
    from torchkiln.lock.rows import state, unconfirmed
    from torchkiln.matrix import compat, facts, schema
    from torchkiln.report.rows import Row

    known = facts.read()
    family = schema.load(ROOT / "matrix.yaml", known)

    return [
        Row(
            target=row,
            findings=compat.lint(row, known, family),
            lock=(lock := state(LOCKS, row)),
            unconfirmed=unconfirmed(LOCKS, row) if lock == "locked" else (),
        )
        for row in selected(family, patterns)
    ]


def caution(row: Target) -> None:
    """Say what lint warns of in a row that is about to be planned or built."""
    from torchkiln import console
    from torchkiln.matrix import compat, facts

    for line in compat.warnings(row, facts.read()):
        console.warn(line)


def explained(identifier: str, *, json: bool) -> None:
    """Why a row would be refused, or not; exits 3 if it would."""
    from torchkiln.matrix import explain, facts, schema
    from torchkiln.report import tables

    known = facts.read()
    found = explain.explain(schema.load(ROOT / "matrix.yaml", known), known, identifier)
    show(explain.to_json(found) if json else tables.explained(found))
    if found.refused:
        raise SystemExit(MatrixError.exit_code)


def built_json(work: Project, built: Built) -> dict[str, Any]:
    """One entry of `build --json`; other programs rely on it."""
    layers = [
        {"key": key, "digest": layer.descriptor.digest, "diff_id": layer.diff_id, "size": layer.descriptor.size}
        for key, layer in zip(built.plan.keys, built.image.layers, strict=True)
    ]
    skipped = {
        "verdict": "incomplete",
        "reason": "not validated (--no-validate): nothing counts as passed",
        "checks": [],
    }
    return {
        "target": built.target.id,
        "digest": built.digest,
        "ref": built_ref(work, built),
        "layers": layers,
        "compressed_size": built.image.compressed_size,
        "unpacked_size": built.image.unpacked_size,
        "seconds": built.seconds,
        "stages": dict(built.stages),
        "validation": built.report.to_json() if built.report else skipped,
    } | ({"pushed": pushed_json(built.pushed)} if built.pushed else {})


def built_ref(work: Project, built: Built) -> str:
    """Where a built image is, as skopeo has it."""
    if built.here or not built.pushed:
        return f"oci:{work.home.store}:{built.target.ref}"
    return f"docker://{pushed_json(built.pushed)['reference']}"


def pushed_json(pushed: Pushed) -> dict[str, Any]:
    """Where a built image is besides, in `build --json`; other programs rely on it."""
    reference = f"{pushed.name.rpartition(':')[0]}@{pushed.digest}"
    return {"name": pushed.name, "reference": reference, "sent": pushed.sent, "blobs": dict(pushed.blobs)}


def judge(reports: Sequence[ValidationReport], *, require_pass: bool) -> None:
    """Raise for the worst verdict; for an incomplete one only where a pass is required."""
    failed = [report.target for report in reports if report.verdict == "fail"]
    incomplete = [report for report in reports if report.verdict == "incomplete"]
    if failed:
        raise ValidationFailedError(f"validation failed: {', '.join(failed)}", remedy="the report says which and why")
    if incomplete and require_pass:
        chosen = all(report.only_selected for report in incomplete)
        raise ValidationIncompleteError(
            f"validation is incomplete: {', '.join(report.target for report in incomplete)}",
            where="only selected checks were asked, and they passed" if chosen else "",
            remedy="leave out --checks for a verdict on the row"
            if chosen
            else "./inv validate on a host that has what the checks need, such as the row's GPU",
        )


@task(
    positional=[],
    iterable=["target"],
    help=TARGET
    | JSON
    | {
        "format": "table, json, markdown (the README's table) or github (one line for a workflow's strategy.matrix)",
        "verbose": "notes in words too; so it is with one target",
        "locked": "only rows that have a fresh lock",
        "explain": "an id, in the matrix or not: why that row would be refused, and what to use instead",
    },
)
@guarded
def matrix(
    _: Context,
    target: Sequence[str],
    format: str = "",
    json: bool = False,
    verbose: bool = False,
    locked: bool = False,
    explain: str | None = None,
) -> None:
    """List the targets, with what lint finds in them; exits 3 for an error."""
    from torchkiln.matrix import compat
    from torchkiln.report import actions, listing
    from torchkiln.report import rows as report
    from torchkiln.validation.selection import check_required

    wanted = format or ("json" if json else "table")
    if wanted not in FORMATS or (json and wanted != "json"):
        raise UsageError(
            f"--format {format} {'contradicts --json' if wanted in FORMATS else 'is not known'}",
            remedy=f"one of {', '.join(FORMATS)}; --json is --format json",
        )
    if explain is not None and (target or wanted not in {"table", "json"}):
        raise UsageError(
            "--explain takes one id, and no other selection", remedy=f"--explain {explain}, or with --json"
        )
    if explain is not None:
        explained(explain, json=wanted == "json")
        return
    found = [row for row in listed(target) if row.lock == "locked" or not locked]
    check_required([row.target for row in found], ROOT / "validate")
    if wanted == "json":
        show([compat.to_json(row.target, row.findings) for row in found])
    elif wanted == "github":
        show(actions.matrix(found))
    elif wanted == "markdown":
        sys.stdout.write(report.markdown(found))
    else:
        notes = verbose or len(found) == 1
        show(listing.listing(found, notes=notes, width=width()))
        show(report.summary(found, notes=notes))
    refused = [row.target.id for row in found if row.refused]
    if refused and wanted == "github":
        sys.stderr.write(f"left out, since lint has errors for them: {', '.join(refused)}\n")
    elif refused:
        raise SystemExit(MatrixError.exit_code)


@task(
    positional=[],
    iterable=["target"],
    help=TARGET
    | EXTRA
    | JSON
    | MADE_FOR
    | {"sharing": "bytes of each row, what no other row of the matrix has, and all with each layer counted once"},
)
@guarded
def plan(
    _: Context,
    target: Sequence[str],
    extra_requirements: str = "",
    sharing: bool = False,
    json: bool = False,
    for_: str | None = None,
    compression: str | None = None,
) -> None:
    """Show what an image would be made of, what that weighs, and which rows share it, without building."""
    from torchkiln import pipeline
    from torchkiln import sharing as shares
    from torchkiln.matrix import facts, schema
    from torchkiln.report import layers

    known = facts.read()
    family = schema.load(ROOT / "matrix.yaml", known)
    chosen = rows(target, family, extra_requirements)
    for row in chosen:
        caution(row)
    every = {row.id: row for row in made_for((*family.targets, *chosen), for_, compression, family)}
    ids = [row.id for row in chosen]
    found = pipeline.family(project(), tuple(every.values()), known, ids)
    found = found.only(ids) if sharing else found
    missing = [found.left_out[row.id] for row in chosen if row.id in found.left_out]
    if missing and not (sharing and found.plans):
        raise missing[0]
    if json:
        show(shares.to_json_of(found) if sharing else [shares.plan_json(found, row.id) for row in chosen])
    elif sharing:
        show(layers.family(found))
        show(layers.family_said(found))
    for row in () if json or sharing else chosen:
        show(layers.plan(found, row.id))
        show(layers.said(found, row.id))


@task(
    positional=[],
    iterable=["target"],
    help=TARGET
    | EXTRA
    | {
        "base": "write what the row's base holds too (runs mmdebstrap, pulls or has Docker build)",
        "check": "change nothing, ask nobody: do the locks fit the rows, layers.lock too? Without --target, of all",
        "upgrade": "take the newest of what the rows allow, instead of what is pinned; the trio stays",
        "markdown": "print what changed as Markdown, for a pull request",
        "from_facts": "take the PyTorch index as torchkiln/matrix/facts.yaml knows it, where it can't be reached",
        "requirements": "print what one row uses of its locks, as pip and uv install it, and write nothing",
        "layers": "build the rows as they are locked, and note in layers.lock what their layers are",
    },
)
@guarded
def lock(
    _: Context,
    target: Sequence[str],
    extra_requirements: str = "",
    base: bool = False,
    check: bool = False,
    upgrade: bool = False,
    markdown: bool = False,
    from_facts: bool = False,
    requirements: bool = False,
    layers: bool = False,
) -> None:
    """Write images/locks/ for the rows, keeping to what is pinned where it still will do; or check them."""
    from torchkiln import layerlocking, locking
    from torchkiln.lock import audit, difference, layeraudit
    from torchkiln.lock import rows as locks
    from torchkiln.matrix import schema

    writing = {"--base": base, "--upgrade": upgrade, "--markdown": markdown, "--from-facts": from_facts}
    hold_apart({"--check": check}, {"--requirements": requirements}, {"--layers": layers}, writing)
    family = schema.load(ROOT / "matrix.yaml")
    if check:
        chosen = selected(family, target, extra_requirements)
        layers_found = layerlocking.audit_layers(project(), (*family.targets, *chosen))
        found = audit.audit(LOCKS, family.targets, chosen, orphans=not target)
        show(audit.plain(found))
        audit.refuse(found)
        layeraudit.refuse(layers_found, [row.id for row in chosen] if target else None)
    elif requirements:
        show(locks.text(LOCKS, one_row(target, extra_requirements)).removesuffix("\n"))
    elif layers:
        made = layerlocking.lock_layers(project(), rows(target, family, extra_requirements))
        show("\n".join(sorted(layer.title for layer in made.values())) or "nothing new")
    else:
        chosen, options = rows(target, family, extra_requirements), {"upgrade": upgrade, "from_facts": from_facts}
        written = locking.relock(project(), chosen, every=family.targets, bases=base, **options)
        if written.changed:
            show(difference.markdown(written.changed) if markdown else difference.plain(written.changed))
        written.refuse()


@task(
    positional=[],
    iterable=["target"],
    help=TARGET | JSON | {"frozen": "refuse a base that is not what its lock says"},
)
@guarded
def base(_: Context, target: Sequence[str], json: bool = False, frozen: bool = False) -> None:
    """Build only the base layers of a row."""
    from torchkiln import pipeline

    made = {row.base.id: pipeline.base(project(), row, frozen=frozen) for row in rows(target)}
    layers = [
        {"base": name, **layer.to_json(), "difference": list(result.difference)}
        for name, result in made.items()
        for layer in result.layers
    ]
    show(layers if json else "\n".join(f"{one['base']} {one['descriptor']['digest']}" for one in layers))


def destinations(push: str, chosen: Sequence[Target]) -> list[str]:
    """Where each row is pushed to, `HOST/REPOSITORY:TAG`; nowhere, if nothing is."""
    from torchkiln.oci import reference

    if not push:
        return [""] * len(chosen)
    place = reference.destination(push)
    if ":" not in push.rpartition("/")[2]:
        return [f"{push}:{row.ref}" for row in chosen]
    if len(chosen) > 1:
        remedy = f"--push {place.host}/{place.repository}: then each is tagged with its own name"
        raise UsageError(f"one tag for {len(chosen)} images", where=push, remedy=remedy)
    return [push]


@task(
    positional=[],
    iterable=["target", "plain_http"],
    help=TARGET
    | JSON
    | ENGINE
    | EXTRA
    | MADE_FOR
    | PLAIN
    | {
        "validate": "--no-validate skips the suite; then nothing counts as passed",
        "frozen": "refuse a Debian archive that has moved on from the lock, and additions that are not locked",
        "require": "`pass`: an incomplete validation is an error",
        "push": "HOST/REPOSITORY[:TAG]: send layers as they are made, name the image there if no check failed;"
        " the tag is what the store calls it unless one is given: the row's id, with -for-NAME or -zstd3 behind it",
        "verify": "make every layer anew and hash all of it, though it is known",
        "from_": "HOST/REPOSITORY: layers that it has are not made; they come here only if something here needs them,"
        " as a validation does",
    },
)
@guarded
def build(
    _: Context,
    target: Sequence[str],
    engine: str = "auto",
    validate: bool = True,
    frozen: bool = False,
    require: str = "",
    json: bool = False,
    extra_requirements: str = "",
    for_: str | None = None,
    compression: str | None = None,
    push: str = "",
    plain_http: Sequence[str] = (),
    verify: bool = False,
    from_: str = "",
) -> None:
    """Fetch, assemble and validate images."""
    from torchkiln import locking, pipeline
    from torchkiln.oci import reference

    if require not in {"", "pass"}:
        raise UsageError(f"--require {require} is not known", remedy="--require pass")
    hold_apart({"--from": bool(from_)}, {"--verify": verify})
    work, chosen = project(), made_for(rows(target, extra=extra_requirements), for_, compression)
    places = destinations(push, chosen)
    if from_:
        reference.repository(from_)
    if extra_requirements and not frozen:
        locking.add(work, chosen)
    runner = pipeline.engine(work, engine) if validate else None
    built = []
    for row, place in zip(chosen, places, strict=True):
        caution(row)
        wishes = pipeline.Wishes(
            frozen=frozen,
            verify=verify,
            push=place,
            plain=tuple(plain_http),
            require_pass=require == "pass",
            origin=from_,
        )
        one = pipeline.build(work, row, runner, wishes)
        built.append(one)
        if not json:
            show_report(one.report)
            show(f"{row.id} {one.digest} {built_ref(work, one)}")
        if one.pushed and not json:
            show(f"{one.pushed.name} {one.pushed.digest}: {one.pushed.sent / 1e6:.1f} MB sent")
    if json:
        show([built_json(work, one) for one in built])
    judge([one.report for one in built if one.report], require_pass=require == "pass")
    if require == "pass" and not validate:
        raise ValidationIncompleteError("nothing was validated", remedy="leave out --no-validate")


@task(
    positional=[],
    iterable=["target", "checks"],
    help=TARGET
    | JSON
    | ENGINE
    | EXTRA
    | MADE_FOR
    | {
        "image": "hold this image against the row: oci:DIR[:REF] or docker-daemon:NAME",
        "checks": "only these checks, by id or glob; may be repeated; the verdict is then incomplete at best",
    },
)
@guarded
def validate(
    _: Context,
    target: Sequence[str],
    checks: Sequence[str],
    image: str = "",
    engine: str = "auto",
    json: bool = False,
    extra_requirements: str = "",
    for_: str | None = None,
    compression: str | None = None,
) -> None:
    """Run the suite on a built image, or hold any image against a row; exits 20 if it fails, 21 if incomplete."""
    from torchkiln import pipeline, validation

    work, row = project(), one_row(target, extra_requirements, for_, compression)
    validation.select(checks, work.suite)
    with pipeline.subject(work, row, image) as subject:
        runner = pipeline.engine(work, engine, subject)
        report = pipeline.validate(work, row, subject, runner, checks=checks)
    if json:
        show(report.to_json())
    else:
        show_report(report)
    judge([report], require_pass=True)


@task(
    positional=[],
    iterable=["target", "tag"],
    help=TARGET | EXTRA | MADE_FOR | {"tag": "name in the engine; default torchkiln/TARGET"},
)
@guarded
def load(
    _: Context,
    target: Sequence[str],
    tag: Sequence[str],
    extra_requirements: str = "",
    for_: str | None = None,
    compression: str | None = None,
) -> None:
    """Put built images into a Docker engine (20.10 or newer)."""
    from torchkiln import pipeline
    from torchkiln.engines import names
    from torchkiln.engines.docker import Docker

    work, chosen = project(), made_for(rows(target, extra=extra_requirements), for_, compression)
    tag = [names.whole(name) for name in tag]
    if tag and len(chosen) > 1:
        raise UsageError(
            f"one name for {len(chosen)} images", where=" ".join(tag), remedy=f"--target {chosen[0].id} --tag {tag[0]}"
        )
    for row in chosen:
        with pipeline.subject(work, row) as subject:
            tags = tuple(tag) or (f"torchkiln/{row.ref}:latest",)
            Docker(subject.store).load(subject.image, tags)
        show("\n".join(tags))


@task(
    positional=["to"],
    iterable=["target", "plain_http"],
    help={"to": "HOST/REPOSITORY[:TAG]"} | TARGET | EXTRA | MADE_FOR | PLAIN | WHOLE | JSON,
)
@guarded
def push(
    _: Context,
    to: str,
    target: Sequence[str],
    plain_http: Sequence[str],
    extra_requirements: str = "",
    for_: str | None = None,
    compression: str | None = None,
    verify: bool = False,
    json: bool = False,
) -> None:
    """Put a built image into a registry, its tag last; what is there already isn't sent."""
    from torchkiln import transfer

    row = one_row(target, extra_requirements, for_, compression)
    sent = transfer.push(project(), row, to, plain=plain_http, whole=verify)
    show(sent.to_json() if json else str(sent))


@task(
    positional=["source"],
    iterable=["plain_http"],
    help={"source": "HOST/REPOSITORY[:TAG] or HOST/REPOSITORY@sha256:…", "name": "instead of the target that it states"}
    | PLAIN
    | JSON,
)
@guarded
def pull(_: Context, source: str, plain_http: Sequence[str], name: str = "", json: bool = False) -> None:
    """Fetch an image that was pushed, as if it had been built here: for validate, shell, load, verify."""
    from torchkiln import transfer

    got = transfer.pull(project(), source, name=name, plain=plain_http)
    show(got.to_json() if json else f"{got.name} {got.digest}")


@task(
    positional=["source", "to"],
    iterable=["plain_http"],
    help={"source": "HOST/REPOSITORY[:TAG] or HOST/REPOSITORY@sha256:…", "to": "HOST/REPOSITORY[:TAG]"}
    | PLAIN
    | WHOLE
    | JSON,
)
@guarded
def copy(_: Context, source: str, to: str, plain_http: Sequence[str], verify: bool = False, json: bool = False) -> None:
    """Put an image of one registry into another, byte for byte, through this machine but not onto its disk."""
    from torchkiln import transfer

    sent = transfer.copy(project(), source, to, plain=plain_http, whole=verify)
    show(sent.to_json() if json else str(sent))


@task(
    positional=[],
    iterable=["target"],
    help=TARGET
    | ENGINE
    | EXTRA
    | MADE_FOR
    | {
        "user": "uid:gid instead of the image's",
        "command": "words of a program to run instead of bash, without a shell",
    },
)
@guarded
def shell(
    _: Context,
    target: Sequence[str],
    engine: str = "auto",
    user: str = "",
    command: str = "",
    extra_requirements: str = "",
    for_: str | None = None,
    compression: str | None = None,
) -> None:
    """Open a shell in a built image; what it writes is gone afterwards."""
    from torchkiln import pipeline
    from torchkiln.engines import Command, Limits

    work = project()
    with pipeline.subject(work, one_row(target, extra_requirements, for_, compression)) as subject:
        argv = tuple(shlex.split(command)) or ("bash",)
        runner = pipeline.engine(work, engine)
        asked = Command(
            argv=argv,
            user=user,
            network=True,
            gpus="gpu" not in runner.restrictions() and bool(subject.image.config.env.get("NVIDIA_VISIBLE_DEVICES")),
            limits=Limits(shm_bytes=2 << 30),
        )
        raise SystemExit(runner.shell(subject.image, asked))


@task(
    positional=[],
    iterable=["target"],
    help=TARGET | JSON | EXTRA | MADE_FOR | {"image": "an image elsewhere: oci:DIR[:REF]"},
)
@guarded
def verify(
    _: Context,
    target: Sequence[str],
    image: str = "",
    json: bool = False,
    extra_requirements: str = "",
    for_: str | None = None,
    compression: str | None = None,
) -> None:
    """Recompute every digest, size and diff_id and report every mismatch; damaged blobs of built images are removed."""
    from dataclasses import asdict

    from torchkiln import pipeline
    from torchkiln.lock import fit
    from torchkiln.oci import load as foreign
    from torchkiln.oci.verify import verify as recompute
    from torchkiln.report.rows import counted

    work = project()
    chosen = () if image else made_for(rows(target, extra=extra_requirements), for_, compression)
    if image:
        found = {image: recompute(*foreign.manifest_of(image))}
    else:
        found = {row.ref: pipeline.verify(work, row) for row in chosen}
    if json:
        show([{"target": name, "mismatches": [asdict(one) for one in wrong]} for name, wrong in found.items()])
    for name, wrong in () if json else found.items():
        show(
            "\n".join(
                [f"{name}: {counted(len(wrong), 'mismatch') if wrong else 'every digest holds'}", *map(str, wrong)]
            )
        )
    if bad := [name for name, wrong in found.items() if wrong]:
        again = " and ".join(fit.build(row) for row in chosen if row.ref in bad)
        remedy = "copy the image again from where it came" if image else f"{again} makes anew what was damaged"
        raise VerifyError("digests do not hold", where=", ".join(bad), remedy=remedy)


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

    collected = garbage.collect(project().home, forget=forget, wheels=wheels)
    show(f"removed {counted(collected.files, 'file')}, {collected.size / 1e9:.2f} GB")


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
    positional=["what"],
    iterable=["target"],
    help={
        "what": "list, all, or assemble, push, again, patch_day, family, flavours, compose, zstd, start, pull, memory",
        "rounds": "how often each contestant runs; default 3, and 1 for the long ones",
        "results": "folder for results; default bench/results",
        "estimate": "say what it would take, and do nothing",
        "fresh": "`all`: also what this commit has results of",
    }
    | TARGET
    | JSON,
)
@guarded
def bench(
    _: Context,
    what: str,
    target: Sequence[str],
    rounds: str = "",
    results: str = "",
    estimate: bool = False,
    fresh: bool = False,
    json: bool = False,
) -> None:
    """Measure, side by side with what others offer; bench/README.md says what is compared."""
    from bench import catalogue, contest, machine, pages, stage

    if what in {"list", "--help", "-h"}:
        show(catalogue.told())
        return
    wanted = catalogue.counted(rounds)
    work, folder = project(), Path(results).absolute() if results else ROOT / "bench" / "results"
    asked = catalogue.chosen(what)
    for one in asked:
        names = catalogue.rows(one, target, among=len(asked))
        number, weight = catalogue.rounds(one, wanted), stage.weight(work, rows(names))
        show(catalogue.estimate(one, weight, number))
        if estimate:
            continue
        if what == "all" and not fresh and catalogue.done(folder, one, names, machine.commit(ROOT)):
            show(f"{one.name}: this commit has a result")
            continue
        stage.need(work.home.root, catalogue.gigabytes(one, weight))
        with stage.prepared(work, rows(names)) as ready:
            result = contest.run(one, ready, rounds=number)
        catalogue.write(folder, result)
        show(result.to_json() if json else pages.section(result, one))


def tool(*arguments: str) -> int:
    """Run a development tool of .venv on this checkout, attached to the terminal."""
    command = [sys.executable, "-m", *arguments]
    return process.start(command, cwd=ROOT, stdin=0, stdout=None, stderr=None, own_group=False).wait()


@task(
    positional=[],
    iterable=["only"],
    help={"only": "paths of tests; may be repeated", "golden": "write golden files anew, to be read as a diff"},
)
@guarded
def test(_: Context, only: Sequence[str], golden: bool = False) -> None:
    """Run the tests; TORCHKILN_REQUIRE=docker,registry,sandbox,network makes a missing one a failure."""
    raise SystemExit(tool("pytest", *only, *(["--golden"] if golden else [])))


def generated() -> dict[Path, str]:
    """What is written from something else: the README's table of targets, and the schema of the matrix for editors."""
    from torchkiln.matrix import editors, facts
    from torchkiln.report import rows

    return {README: rows.filled(README.read_text(), listed([])), editors.SCHEMA: editors.text(facts.read())}


@task
@guarded
def check(_: Context) -> None:
    """What CI runs, changing nothing: style, types, generated parts."""
    for path, text in generated().items():
        if not path.exists() or path.read_text() != text:
            leave(f"error: {path.relative_to(ROOT)} is not what the matrix makes of it now\n  try: ./inv fix", 1)
    codes = [tool("ruff", "format", "--check", "."), tool("ruff", "check", "."), tool("mypy")]
    raise SystemExit(max(codes))


@task
@guarded
def fix(_: Context) -> None:
    """Mend what can be mended: format, style, the README's table, the matrix's schema, requirements.lock."""
    for path, text in generated().items():
        path.write_text(text)
    lock = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]  # for each newer Python too
    lock += ["--generate-hashes", "--no-emit-index-url", "--no-annotate", "--custom-compile-command", "./inv fix"]
    tool(*lock, "--output-file", "requirements.lock", "requirements.in")
    tool("ruff", "check", "--fix", "--quiet", ".")
    raise SystemExit(tool("ruff", "format", "."))
