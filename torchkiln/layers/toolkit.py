"""/opt/cuda: one CUDA toolkit made of links to the files of NVIDIA's wheels, where compilers and CMake look for it.

The wheels put everything under site-packages/nvidia, without `lib64` and without the plain names that `-lcudart`
needs. Nothing is copied: headers, tools and libraries are those of the wheels that torch loads.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchkiln.layers import wheel
from torchkiln.layers.archive import Entry, order, write_layer
from torchkiln.layers.install import SITE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torchkiln.layers.archive import Content
    from torchkiln.oci.image import Layer
    from torchkiln.oci.store import Store
    from torchkiln.specs import ToolkitSpec

HOME = "opt/cuda"
COMPILER = "bin/nvcc"
FOLDERS = {"bin": "bin", "include": "include", "lib": "lib64", "nvvm": "nvvm"}
"""Of a component in the wheels, and in a toolkit as torch.utils.cpp_extension expects it."""
BESIDE = ("cudnn", "nccl", "cusparselt")
"""What torch's headers include from outside the toolkit; NVSHMEM's folders `device` and `host` would shadow others'."""
_FILE = re.compile(rf"(?P<root>{SITE}/nvidia/(?P<component>\w+))/(?P<folder>{'|'.join(FOLDERS)})/(?P<name>[^/]+)")
_VERSIONED = re.compile(r"(lib[\w.+-]+\.so)\.[\d.]+")
_PROFILE = f"""\
# Login shells (bash -l, su -, ssh) begin with another PATH and without the image's variables; what is set stays.
case ":$PATH:" in
    *:/{HOME}/bin:*) ;;
    *) PATH="/{HOME}/bin:$PATH" ;;
esac
export PATH
export CUDA_HOME="${{CUDA_HOME:-/{HOME}}}"
"""
_ARCHS = """\
export TORCH_CUDA_ARCH_LIST="${{TORCH_CUDA_ARCH_LIST:-{archs}}}"
"""


def links(files: Iterable[str]) -> dict[str, str]:
    """Path → where it links to, for the files that NVIDIA's wheels write; the toolkit's own come first; pure.

    `bin` is a real folder, since nvcc finds its parts beside the folder it is called in (`$(_HERE_)/..` in
    nvcc.profile), and the kernel resolves `..` behind a link elsewhere.
    """
    paths = sorted(set(files))
    own = {found["component"] for found in map(_FILE.match, paths) if found and found[0].endswith(f"/{COMPILER}")}
    made: dict[str, str] = {}
    for components in (own, set(BESIDE)):
        for found in map(_FILE.match, paths):
            if found and found["component"] in components and found["name"] != "__init__.py":
                made.setdefault(f"{HOME}/{FOLDERS[found['folder']]}/{found['name']}", f"/{found[0]}")
    for path in sorted(made):
        folder, _, name = path.rpartition("/")
        if plain := _VERSIONED.fullmatch(name):
            made.setdefault(f"{folder}/{plain[1]}", name)
    return made | {f"{HOME}/lib": "lib64"}


def entries(files: Iterable[str], archs: str) -> list[tuple[Entry, Content]]:
    """What the layer holds, sorted."""
    found: list[tuple[Entry, Content]] = [
        (Entry(path=path, kind="symlink", mode=0o777, target=target), None) for path, target in links(files).items()
    ]
    profile = _PROFILE + (_ARCHS.format(archs=archs) if archs else "")
    found += [
        (Entry(path="etc/profile.d/torchkiln-cuda.sh", kind="file", mode=0o644), profile.encode()),
    ]
    return sorted(found, key=lambda pair: order(pair[0].path))


def build(store: Store, spec: ToolkitSpec, paths: Mapping[str, Path]) -> Layer:
    """The layer for a spec's wheels, found by sha256 in `paths`."""
    files = [path for pin in spec.pins for path in wheel.contents(paths[pin.sha256])]
    return write_layer(store, spec.title, entries(files, spec.archs))
