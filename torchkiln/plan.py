"""Target + Lock → ImagePlan: ordered layer specs, and the config; pure. Nothing here reads a file or a clock."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torchkiln import stacking
from torchkiln.errors import PlanError
from torchkiln.lock import basefit
from torchkiln.matrix.target import DEVEL, TRIO
from torchkiln.oci import digest as digests
from torchkiln.oci.compression import GZIP
from torchkiln.oci.image import ARCHITECTURES, REF_NAME, Config, canonical
from torchkiln.specs import (
    AdoptionSpec,
    BaseSpec,
    BytecodeSpec,
    EnvironmentSpec,
    ForeignSpec,
    Part,
    SuiteSpec,
    ToolkitSpec,
    WheelSpec,
    key_in_image,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torchkiln.lock.baselock import BaseLock
    from torchkiln.lock.lockfile import Lock, Pin
    from torchkiln.matrix.target import Target
    from torchkiln.oci.compression import Compression
    from torchkiln.oci.image import Layer
    from torchkiln.specs import LayerSpec

LOCK_LABEL = "org.torchkiln.lock"
ROW_LABEL = "org.torchkiln.target"
"""Names the lock that an image was made from, by its digest."""
OURS = 3
"""Layers for environment, toolkit and suite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlan:
    """An image before it is built."""

    target: str
    layers: tuple[LayerSpec, ...]
    config: Config
    compression: Compression = GZIP
    """Of every layer; the specs say what is in them, whatever it is."""
    max_layer_bytes: int | None = None
    """Of every layer's blob."""
    name: str = ""
    """What the manifest calls the image, where that is not what the config calls it; see `named`."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Of the layers as the image has them, lowest first."""
        return tuple(key_in_image(spec, self.compression) for spec in self.layers)


def has_toolkit(target: Target) -> bool:
    """Whether the image holds nvcc: CUDA rows of flavour devel."""
    return target.flavour.id == DEVEL and target.accelerator.kind == "cuda"


def arch_list(target: Target) -> str:
    """What extensions are compiled for, as TORCH_CUDA_ARCH_LIST has it: `8.0 9.0a 12.0+PTX`.

    Without it torch compiles for the GPUs that it sees, and where it sees none, as while an image is built, it fails.
    """
    names = [name.partition("_")[::2] for name in target.gpu_archs]
    ptx = {number for kind, number in names if kind == "compute"}
    found = [re.fullmatch(r"(\d+)(\d[a-z]?)", number) for kind, number in names if kind == "sm"]
    return " ".join(f"{one[1]}.{one[2]}" + "+PTX" * (one[0] in ptx) for one in found if one)


def environment(target: Target) -> dict[str, str]:
    """The variables an image sets, and no others (the check static.env holds images to it)."""
    variables = {
        "PATH": "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/home/torch",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "VIRTUAL_ENV": "/opt/venv",
        "PYTHONNOUSERSITE": "1",
        "PYTORCH_VERSION": target.release.torch,
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/torch/inductor",  # noqa: S108  a path in the image
        "TRITON_CACHE_DIR": "/tmp/torch/triton",  # noqa: S108
        "TORCH_EXTENSIONS_DIR": "/tmp/torch/extensions",  # noqa: S108
    }
    if target.accelerator.kind == "cuda":
        variables |= {
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            "NVIDIA_REQUIRE_CUDA": f"driver>={target.driver_floor.split('.')[0]}",
        }
    if has_toolkit(target):  # torch.utils.cpp_extension reads CUDA_HOME, CMake looks along PATH
        path = variables["PATH"].replace("/opt/venv/bin:", "/opt/venv/bin:/opt/cuda/bin:")
        variables |= {"PATH": path, "CUDA_HOME": "/opt/cuda"}
        variables |= {"TORCH_CUDA_ARCH_LIST": archs} if (archs := arch_list(target)) else {}
    return variables


def overrides_gfx(target: Target) -> bool:
    """Whether a run option makes an AMD GPU pretend to be another one."""
    return any("HSA_OVERRIDE_GFX_VERSION" in option for option in target.gpu.run_options)


def labels(target: Target, lock: Lock) -> dict[str, str]:
    """What the image says about itself (image-spec annotations.md, and our own under org.torchkiln)."""
    release, accelerator = target.release, target.accelerator
    stated = {
        "org.opencontainers.image.title": f"PyTorch {release.torch} {accelerator.id}",
        "org.opencontainers.image.version": f"{release.torch}-{accelerator.id}-py{target.base.python}-{target.base.id}",
        "org.opencontainers.image.vendor": "Torchkiln",
        REF_NAME: target.id,
        ROW_LABEL: target.id,
        "org.torchkiln.torch": release.torch,
        "org.torchkiln.torchvision": release.torchvision,
        "org.torchkiln.torchaudio": release.torchaudio,
        "org.torchkiln.python": target.base.python,
        "org.torchkiln.accelerator": accelerator.id,
        "org.torchkiln.driver-floor": target.driver_floor,
        "org.torchkiln.gpu": target.gpu.id,
        "org.torchkiln.gpu-archs": " ".join(target.gpu_archs),
        LOCK_LABEL: lock.digest,
        "org.torchkiln.run-options": " ".join(target.gpu.run_options),
        "org.torchkiln.unsupported": "gfx-override" if overrides_gfx(target) else "",
    }
    return {name: value for name, value in stated.items() if value}


def named(target: Target) -> str:
    """What the manifest of a row that is made for a publish target or in a compression says it is called.

    Its config is that of the plain row, whose name it so does not take where it is pulled. The plain row's manifest
    says nothing, as ever.
    """
    return "" if target.ref == target.id else target.ref


def config(target: Target, lock: Lock) -> Config:
    """How the image starts."""
    return Config(
        env=environment(target),
        entrypoint=("/usr/bin/tini", "-s", "--"),
        command=("/bin/bash",),
        user="1000:0",
        working_dir="/workspace",
        labels=labels(target, lock),
        stop_signal="SIGTERM",
        architecture=ARCHITECTURES[target.arch],
    )


def plan(target: Target, lock: Lock, base: BaseLock, suite: SuiteSpec, *, recipe: str = "") -> ImagePlan:
    """Every layer of the image, lowest first, and its config.

    PlanError if layers would be too many for the row's publish target, or too large as far as that is known: what a
    wheel holds is known when it is there (layers/parts.py), and what a layer weighs when it is made (`refuse_large`).
    """
    place = target.publish_target
    bases = base_specs(target, base, recipe)
    environment = EnvironmentSpec(
        python=target.base.python,
        interpreter=target.base.interpreter,
        protected=tuple(f"{pin.name}=={pin.version.split('+')[0]}" for pin in lock.pins if pin.name in TRIO),
    )
    shared, *additions = lock.parts or (lock.pins,)
    own = [shared, *(additions[:-1] if target.extra else additions)]
    nvidia = sorted(
        (pin for part in own for pin in part if pin.name.startswith(stacking.NVIDIA)), key=lambda pin: pin.name
    )
    compiler = partial(BytecodeSpec, python=base.python or target.base.python, image=_image(base))
    parts, rooms = (shared, *additions), stacking.rooms(place.max_layers - len(bases) - OURS)
    try:
        stacked = [
            _stack(part, room, place.max_layer_bytes, compiler) for part, room in zip(parts, rooms, strict=False)
        ]
    except PlanError:
        raise stacking.refusal(parts, place, row=target.id, base=len(bases), ours=OURS) from None
    toolkit = ToolkitSpec(pins=tuple(nvidia), archs=arch_list(target))
    # What is ours is small, changes with Torchkiln, and differs between rows that share all below: it lies on top. With
    # bytecode above it, a new environment made an engine fetch the 44 MB of bytecode of torch25-cu124 anew.
    ours = (environment, *((toolkit,) if has_toolkit(target) else ()), suite)
    planned = ImagePlan(
        target=target.id,
        layers=(*bases, *(spec for stack in stacked for spec in stack), *ours),
        config=config(target, lock),
        compression=target.compression,
        max_layer_bytes=place.max_layer_bytes,
        name=named(target),
    )
    refuse_large(planned, (spec.layer for spec in bases if isinstance(spec, ForeignSpec)))
    return planned


def refuse_large(planned: ImagePlan, layers: Iterable[Layer]) -> None:
    """PlanError naming every layer that is larger than the plan allows."""
    limit = planned.max_layer_bytes
    large = [layer for layer in layers if limit is not None and layer.descriptor.size > limit]
    if large:
        told = ", ".join(f"{layer.title or layer.descriptor.digest} ({layer.descriptor.size} bytes)" for layer in large)
        raise PlanError(
            f"a layer may have {limit} bytes, and more have: {told}",
            where=planned.target,
            remedy="a publish target with a larger max_layer_bytes, or none; another base, if that is too large",
        )


def base_specs(target: Target, lock: BaseLock, recipe: str) -> tuple[BaseSpec | ForeignSpec | AdoptionSpec, ...]:
    """The layers of the base: one that we assemble, or those of an image that others made and one of ours."""
    base, layers = target.base, lock.layers
    if base.kind == "debian":
        return (BaseSpec(base=base, lock=lock, recipe=recipe, arch=target.arch, relock=basefit.command(target)),)
    foreign = [
        ForeignSpec(base=base, layer=layer, number=number, count=len(layers))
        for number, layer in enumerate(layers, start=1)
    ]
    adoption = AdoptionSpec(base=base, lock=lock, recipe=recipe, arch=target.arch, relock=basefit.command(target))
    return (*foreign, adoption)


def _image(lock: BaseLock) -> str:
    """Names the layers that others made; empty for a base that we assemble."""
    return digests.of_bytes(canonical([layer.diff_id for layer in lock.layers])) if lock.layers else ""


def _stack(
    pins: tuple[Pin, ...], room: int, max_bytes: int | None, compiler: Callable[..., BytecodeSpec]
) -> tuple[LayerSpec, ...]:
    """The layers of wheels that were locked together: the files of each group, and right above their bytecode."""
    stacked: list[LayerSpec] = []
    for group in stacking.groups(pins, room, max_bytes):
        stacked += _wheels(group, max_bytes)
        compiled = tuple(pin for pin in group if stacking.has_modules(pin))
        stacked += [compiler(pins=compiled)] if compiled else []
    return tuple(stacked)


def _wheels(group: tuple[Pin, ...], max_bytes: int | None) -> list[WheelSpec]:
    count = stacking.part_count(group, max_bytes)
    if max_bytes is None or count == 1:
        return [WheelSpec(pins=group)]
    return [WheelSpec(pins=group, part=Part(number=number, max_bytes=max_bytes)) for number in range(1, count + 1)]


def to_json(planned: ImagePlan) -> dict[str, Any]:
    """What `plan --json` prints: the ordered layers with their keys, and the config."""
    config = planned.config
    return {
        "target": planned.target,
        "layers": [{"key": key, "title": spec.title} for key, spec in zip(planned.keys, planned.layers, strict=True)],
        "config": {
            "env": dict(config.env),
            "entrypoint": list(config.entrypoint),
            "cmd": list(config.command),
            "user": config.user,
            "working_dir": config.working_dir,
            "labels": dict(config.labels),
            "stop_signal": config.stop_signal,
            "architecture": config.architecture,
            "created": config.created,
        },
    }
