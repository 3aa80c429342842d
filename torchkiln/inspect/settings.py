"""Static checks of the image's config: labels, environment, how it starts, architecture, the list of layers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torchkiln.inspect.secrets import CONTENT, VARIABLE
from torchkiln.inspect.subject import StaticCheck, Subject
from torchkiln.matrix.publishing import LAYER_LIMIT
from torchkiln.oci.image import ARCHITECTURES

if TYPE_CHECKING:
    from collections.abc import Mapping

DEVICES = frozenset({"CUDA", "AMD GPU", "BPF"})
"""Machines whose code is loaded by programs of any other."""
SHOWN = 5
MACHINES = {architecture: machine for machine, architecture in ARCHITECTURES.items()}


def labels(subject: Subject) -> list[str]:
    """Each label the row calls for has the row's value; others are nobody's business."""
    found, wanted = subject.image.config.labels, subject.declared.labels
    return _differences("label", {name: found[name] for name in wanted if name in found}, wanted)


def environment(subject: Subject) -> list[str]:
    """Exactly the declared variables, and none that looks like a secret or a proxy."""
    found = subject.image.config.env
    leaks = [f"{name} looks like a secret or a proxy" for name in sorted(found) if VARIABLE.search(name)]
    values = [
        f"the value of {name} looks like {what}"
        for name, value in sorted(found.items())
        for what, part, _form in CONTENT
        if part in value.encode()
    ]
    return leaks + values + _differences("variable", found, subject.declared.env)


def start(subject: Subject) -> list[str]:
    """User, entrypoint, command, folder and stop signal are the declared ones; the user is a number, and not root."""
    found, wanted = subject.image.config, subject.declared
    fields = ("user", "entrypoint", "command", "working_dir", "stop_signal")
    problems = [
        f"{name} is {getattr(found, name)!r}, declared is {getattr(wanted, name)!r}"
        for name in fields
        if getattr(found, name) != getattr(wanted, name)
    ]
    uid = found.user.partition(":")[0]
    if not uid.isdigit() or int(uid) == 0:
        problems.append(f"user {found.user or 'root'} is not a number above 0: Kubernetes' runAsNonRoot refuses it")
    return problems


def architecture(subject: Subject) -> list[str]:
    """Every program and library of base and wheels is compiled for what the config says; code for GPUs is not asked."""
    stated = subject.image.config.architecture
    machine = MACHINES.get(stated, stated)
    problems = [] if machine == subject.target.arch else [f"the config says {stated}, the row {subject.target.arch}"]
    programs = [entry for entry in subject.tree.values() if entry.elf]
    python = subject.target.base.interpreter.lstrip("/")
    for name, part in (("python", f"/{python}"), ("libtorch", "/torch/lib/libtorch")):
        problems += [] if any(part in f"/{entry.path}" for entry in programs) else [f"no {name} was found"]
    other = [entry for entry in programs if entry.elf not in {machine, *DEVICES}]
    more = [f"and {len(other) - SHOWN} more files"] if len(other) > SHOWN else []
    return [
        *problems,
        *(f"/{entry.path} is for {entry.elf}, the config says {stated}" for entry in other[:SHOWN]),
        *more,
    ]


def layers(subject: Subject) -> list[str]:
    """Not too many, none twice, none empty."""
    stated = subject.image.layers
    counted = Counter(layer.diff_id for layer in stated)
    problems = [f"{len(stated)} layers, engines stop at {LAYER_LIMIT}"] if len(stated) > LAYER_LIMIT else []
    problems += [f"layer {digest} is there {count} times" for digest, count in counted.items() if count > 1]
    problems += [
        f"layer {number} ({layer.title or layer.diff_id}) is empty"
        for number, (layer, held) in enumerate(zip(stated, subject.layers, strict=True))
        if not held.entries
    ]
    return problems


def _differences(kind: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    missing = [f"{kind} {name} is missing" for name in sorted(set(wanted) - set(found))]
    unknown = [f"{kind} {name} is not declared" for name in sorted(set(found) - set(wanted))]
    other = [
        f"{kind} {name} is {found[name]!r}, the row says {wanted[name]!r}"
        for name in sorted(set(found) & set(wanted))
        if found[name] != wanted[name]
    ]
    return missing + unknown + other


CHECKS = (
    StaticCheck(
        id="static.labels",
        title="labels are complete and the row's",
        explanation="Tools that read labels would believe another row. Build again; labels come from the plan.",
        judge=labels,
    ),
    StaticCheck(
        id="static.env",
        title="environment is exactly the declared one",
        explanation="A variable was added, lost or changed after planning; secrets and proxies of the building host "
        "must never be in a config. Build again in a clean environment.",
        judge=environment,
    ),
    StaticCheck(
        id="static.start",
        title="user, entrypoint, command and folder",
        explanation="The image starts otherwise than its row declares. Build again; these come from the plan.",
        judge=start,
    ),
    StaticCheck(
        id="static.arch",
        title="every program and library is for the stated architecture",
        explanation="A base or a wheel holds files of another machine, which can't be executed or loaded. Check the "
        "base's image or mirror, and the file names in the lock.",
        judge=architecture,
    ),
    StaticCheck(
        id="static.layers",
        title="layers: not too many, none twice, none empty",
        explanation="Engines refuse images with too many layers; an empty or repeated one is a mistake of the plan.",
        judge=layers,
    ),
)
