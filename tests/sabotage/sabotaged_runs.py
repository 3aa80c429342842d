"""One sabotage for each check inside the container: how to start a sound image so that just this goes wrong."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchkiln.engines import Command, Limits, Mount
from torchkiln.validation.container import GATE, OTHER_USER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torchkiln.engines import Engine
    from torchkiln.oci.image import Image

FAKE = "/opt/torchkiln-fake"
"""Put first on PYTHONPATH by sabotages that shadow a module."""
INCLUDE = "/usr/include/python{python}"
SITE = "/opt/venv/lib/python/site-packages"
EXTRA = "Metadata-Version: 2.1\nName: extra\nVersion: 1.0\nRequires-Dist: torch<1\n"

Row = dict[str, Any]


def _same(row: Row) -> Row:
    return row


@dataclass(frozen=True, kw_only=True)
class Sabotage:
    """What is wrong, and what the check must then say."""

    check: str
    reason: str
    """Pattern."""
    status: str = "fail"
    row: Callable[[Row], Row] = _same
    """Edits the expectation."""
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    user: str = ""
    tmpfs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Path in the container → content; paths may name {python}."""


@dataclass(frozen=True, kw_only=True)
class Caught:
    """What the check answered."""

    status: str
    reason: str

    def by(self, sabotage: Sabotage) -> bool:
        """Whether that is the answer the sabotage deserves."""
        return self.status == sabotage.status and bool(re.search(sabotage.reason, self.reason))


def _stating(**values: object) -> Callable[[Row], Row]:
    return lambda row: {**row, **values}


def _pinning(name: str, version: str) -> Callable[[Row], Row]:
    return lambda row: {**row, "pins": {**row["pins"], name: version}}


def _shipping(name: str) -> Callable[[Row], Row]:
    """A row that ships a companion, whether the image does or not."""
    return lambda row: {**row, name: row[name] or "0.0.1"}


SHADOWED = {"PYTHONPATH": FAKE}
NMS = "from types import SimpleNamespace\nops = SimpleNamespace(nms=lambda boxes, scores, bound: scores.argsort())\n"
RESAMPLE = (
    "from types import SimpleNamespace\n"
    "functional = SimpleNamespace(resample=lambda tone, before, after: tone[::2] * 0.5)\n"
)

SABOTAGES: tuple[Sabotage, ...] = (
    Sabotage(check="python.version", row=_stating(python="3.99"), reason=r"Python 3\.\d+, the row says 3\.99"),
    Sabotage(
        check="host.scratch", tmpfs={"/tmp": "size=64m,exec"}, status="environment", reason=r"less than 512 MB free"
    ),
    Sabotage(
        check="cache.folders", env={"TRITON_CACHE_DIR": "/root/cache"}, reason=r"TRITON_CACHE_DIR=/root/cache cannot be"
    ),
    Sabotage(
        check="torch.import", env=SHADOWED, files={f"{FAKE}/torch.py": "raise ImportError('sabotaged')\n"},
        reason=r"ImportError: sabotaged",
    ),
    Sabotage(check="version.torch", row=_stating(torch="0.0.1"), reason=r"torch \S+, the row says 0\.0\.1"),
    Sabotage(check="version.torch", row=_stating(accelerator="cu999"), reason=r"is built for \S+, the row says cu999"),
    Sabotage(
        check="version.accelerator", row=_stating(kind="rocm", toolkit="9.9"), reason=r"version\.\w+ is .*the row says"
    ),
    Sabotage(check="version.trio", row=_pinning("triton", "0.0.1"), reason=r"triton .*, the lock says 0\.0\.1"),
    Sabotage(
        check="lock.installed", env=SHADOWED, files={f"{FAKE}/extra-1.0.dist-info/METADATA": EXTRA},
        reason=r"extra 1\.0 is not in the lock",
    ),
    Sabotage(check="lock.installed", row=_pinning("torch", "0.0.1"), reason=r"torch \S+, the lock says 0\.0\.1"),
    Sabotage(
        check="lock.record", files={f"{SITE}/torch/hub.py": "# changed\n"}, reason=r"torch/hub\.py of torch has \d+ by"
    ),
    Sabotage(
        check="lock.consistent", env=SHADOWED, files={f"{FAKE}/extra-1.0.dist-info/METADATA": EXTRA},
        reason=r"extra 1\.0 requires torch<1, but",
    ),
    Sabotage(
        check="ops.numpy", env=SHADOWED, files={f"{FAKE}/numpy.py": "raise ModuleNotFoundError('sabotaged')\n"},
        reason=r"ModuleNotFoundError: sabotaged",
    ),
    Sabotage(
        check="ops.vision", row=_shipping("torchvision"), env=SHADOWED,
        files={f"{FAKE}/torchvision.py": NMS + "__version__ = '0'\n"}, reason=r"nms kept \[2, 0, 1\]",
    ),
    Sabotage(
        check="ops.audio", row=_shipping("torchaudio"), env=SHADOWED,
        files={f"{FAKE}/torchaudio.py": RESAMPLE + "__version__ = '0'\n"}, reason=r"error 0\.5",
    ),
    Sabotage(
        check="toolchain.compilers", env={"PATH": "/opt/venv/bin"}, reason=r"cc is not on PATH; c\+\+ is not on PATH"
    ),
    Sabotage(
        check="toolchain.headers", files={f"{INCLUDE}/patchlevel.h": '#define PY_VERSION "3.0.0"\n'},
        reason=r"are of Python 3\.0\.0, the interpreter is",
    ),
    Sabotage(
        check="toolchain.extension", files={f"{INCLUDE}/Python.h": "#error sabotaged\n"},
        reason=r"does not build: .*sabotaged",
    ),
    Sabotage(check="compile.generated", env={"TORCHDYNAMO_DISABLE": "1"}, reason=r"0 graphs were compiled"),
    Sabotage(check="compile.generated", env={"TORCHDYNAMO_SUPPRESS_ERRORS": "1"}, reason=r"suppress_errors is on"),
    Sabotage(
        check="compile.vectors", files={f"{SITE}/torch/include/ATen/cpu/vec/vec.h": "#error sabotaged\n"},
        reason=r"does not build VecAVX2, VecAVX512",
    ),
    Sabotage(check="compile.backends", env={"TORCHDYNAMO_DISABLE": "1"}, reason=r"inductor compiled nothing"),
    Sabotage(check="compile.backends", row=_stating(backends=["nonesuch"]), reason=r"nonesuch is not listed"),
    Sabotage(
        check="compile.random_uid", user=OTHER_USER, unset=("HOME", "USER", "LOGNAME"),
        env={"TORCHINDUCTOR_CACHE_DIR": "/root/cache"}, reason=r"Permission ?[dD]enied|PermissionError",
    ),
    Sabotage(
        check="bench.pointwise", row=_stating(thresholds={"speed.cpu.pointwise": 1000.0}), reason=r"is below 1000x"
    ),
    Sabotage(
        check="bench.simplecnn", row=_stating(thresholds={"speed.cpu.simplecnn": 1000.0}), reason=r"is below 1000x"
    ),
    Sabotage(check="devel.tools", env={"PATH": "/opt/venv/bin"}, reason=r"cmake is not on PATH; git is not on PATH"),
    Sabotage(check="devel.nvcc", env={"PATH": "/usr/bin:/bin"}, reason=r"nvcc is not on PATH"),
    Sabotage(check="devel.nvcc", env={"CUDA_HOME": ""}, reason=r"nvcc on PATH is /opt/cuda/bin/nvcc, CUDA_HOME is not"),
    Sabotage(
        check="devel.nvcc", row=_stating(toolkit="12.6"), reason=r"nvcc is of CUDA 13\.0, the row says 12\.6"
    ),
    Sabotage(
        check="devel.nvcc", files={f"{SITE}/nvidia/cu13/include/cuda_runtime_api.h": "#error sabotaged\n"},
        reason=r"nvcc cannot build a library: .*sabotaged",
    ),
    Sabotage(check="devel.extension", unset=("TORCH_CUDA_ARCH_LIST",), reason=r"TORCH_CUDA_ARCH_LIST is not set"),
    Sabotage(  # the image below is a CPU row with a toolkit: as if somebody had replaced its torch
        check="devel.extension", reason=r"torch is built for no CUDA and finds no toolkit"
    ),
    Sabotage(check="dist.gloo", env={"GLOO_SOCKET_IFNAME": "nonesuch"}, reason=r"all_reduce did not give the sum"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A sound image, what it has to hold, and where to run it."""

    engine: Engine
    image: Image
    expectation: bytes
    suite: Path


def run_sabotages(ground: Ground, folder: Path, table: Sequence[Sabotage] = SABOTAGES) -> list[tuple[Sabotage, Caught]]:
    """Every sabotage, and what its check answered."""
    return [(sabotage, run(ground, folder, sabotage)) for sabotage in table]


def run(ground: Ground, folder: Path, sabotage: Sabotage) -> Caught:
    """Start the image so that one thing is wrong, and ask the one check (and what it needs)."""
    row = sabotage.row(json.loads(ground.expectation))
    outcome = ground.engine.run(ground.image, _command(sabotage, row, ground.suite, folder))
    try:
        document = json.loads(outcome.stdout.strip().rpartition(b"\n")[2])
    except ValueError:
        return Caught(status="no report", reason=(outcome.stdout + outcome.stderr).decode(errors="replace")[-2000:])
    (found,) = [entry for entry in document["checks"] if entry["id"] == sabotage.check]
    return Caught(status=found["status"], reason=found["reason"])


def _command(sabotage: Sabotage, row: Row, suite: Path, folder: Path) -> Command:
    files = {path.format(**row): text for path, text in sabotage.files.items()}
    files[f"{GATE}/expect.json"] = json.dumps(row)
    mounts = [Mount(source=_file(folder, name, text), target=path) for name, (path, text) in enumerate(files.items())]
    return Command(
        argv=("python3", f"{GATE}/validate", "--expect", f"{GATE}/expect.json", "--json", "--checks", sabotage.check),
        user=sabotage.user,
        env=sabotage.env,
        unset=sabotage.unset,
        tmpfs=sabotage.tmpfs,
        mounts=(Mount(source=suite, target=f"{GATE}/validate"), *mounts),
        limits=Limits(seconds=600, shm_bytes=1 << 28),
    )


def _file(folder: Path, name: int, text: str) -> Path:
    path = folder / str(name)
    path.write_text(text)
    path.chmod(0o644)
    return path
