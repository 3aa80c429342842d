"""`./inv build` and `./inv base`: images, or their lowest layers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from invoke.tasks import task

from torchkiln.commands import checkout
from torchkiln.commands.exits import guarded
from torchkiln.commands.options import ENGINE, EXTRA, JSON, MADE_FOR, PLAIN, TARGET, hold_apart
from torchkiln.commands.output import show, show_report
from torchkiln.commands.selection import caution, made_for, rows
from torchkiln.commands.validate import judge
from torchkiln.errors import UsageError, ValidationIncompleteError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from invoke.context import Context

    from torchkiln.matrix.target import Target
    from torchkiln.oci.push import Pushed
    from torchkiln.pipeline import Built
    from torchkiln.project import Project


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
    plain_http: Sequence[str],
    engine: str = "auto",
    validate: bool = True,
    frozen: bool = False,
    require: str = "",
    json: bool = False,
    extra_requirements: str = "",
    for_: str | None = None,
    compression: str | None = None,
    push: str = "",
    verify: bool = False,
    from_: str = "",
) -> None:
    """Fetch, assemble and validate images."""
    from torchkiln import locking, pipeline
    from torchkiln.oci import reference

    if require not in {"", "pass"}:
        raise UsageError(f"--require {require} is not known", remedy="--require pass")
    hold_apart({"--from": bool(from_)}, {"--verify": verify})
    work, chosen = checkout.project(), made_for(rows(target, extra=extra_requirements), for_, compression)
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
            show(f"{row.ref} {one.digest} {built_ref(work, one)}")
        if one.pushed and not json:
            show(f"{one.pushed.name} {one.pushed.digest}: {one.pushed.sent / 1e6:.1f} MB sent")
    if json:
        show([built_json(work, one) for one in built])
    judge([one.report for one in built if one.report], require_pass=require == "pass")
    if require == "pass" and not validate:
        raise ValidationIncompleteError("nothing was validated", remedy="leave out --no-validate")


@task(
    positional=[],
    iterable=["target"],
    help=TARGET | JSON | {"frozen": "refuse a base that is not what its lock says"},
)
@guarded
def base(_: Context, target: Sequence[str], json: bool = False, frozen: bool = False) -> None:
    """Build only the base layers of a row."""
    from torchkiln import pipeline

    made = {row.base.id: pipeline.base(checkout.project(), row, frozen=frozen) for row in rows(target)}
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
    return f"docker://{built.pushed.reference}"


def pushed_json(pushed: Pushed) -> dict[str, Any]:
    """Where a built image is besides, in `build --json`; other programs rely on it."""
    return {"name": pushed.name, "reference": pushed.reference, "sent": pushed.sent, "blobs": dict(pushed.blobs)}
