"""Show a sandboxed command the GPUs: device nodes, and the driver's libraries beside the image's own.

Written from the NVIDIA container toolkit's and ROCm's documentation; never run on a machine with a GPU.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln import process
from torchkiln.engines import inside
from torchkiln.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps", "kfd", "dri")
_DRIVER = re.compile(r"^\s(lib(?:cuda|cudadebugger|nvidia-[a-z0-9-]+|nvcuvid)\.so\S*) .* => (\S+)$", re.MULTILINE)
FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
"""Where a loader looks without a cache, on Debian and on Fedora."""


def nodes() -> list[Path]:
    """The GPU device nodes of this host."""
    return sorted(path for pattern in NODES for path in Path("/dev").glob(pattern))


def present() -> bool:
    """Whether there is a GPU that computes: one of NVIDIA, or one with AMD's compute node."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()


def arguments(tree: Path) -> Iterator[str]:
    """What bubblewrap needs to be told."""
    for node in nodes():
        yield from ("--dev-bind", str(node), str(node))
    yield from ("--ro-bind-try", "/sys", "/sys")  # topology: NCCL and RCCL read it
    folder = next((name for name in FOLDERS if (tree / inside.resolve(tree, name).lstrip("/")).is_dir()), FOLDERS[-1])
    for name, source in _libraries():
        yield from ("--ro-bind", source, f"{inside.resolve(tree, folder)}/{name}")
    yield from ("--ro-bind-try", "/usr/bin/nvidia-smi", inside.resolve(tree, "/usr/bin/nvidia-smi"))


def _libraries() -> list[tuple[str, str]]:
    """Name and path of each library of the NVIDIA driver that the host's loader knows."""
    try:
        return _DRIVER.findall(process.run(["/sbin/ldconfig", "-p"]).stdout.decode())
    except HostError:
        return []
