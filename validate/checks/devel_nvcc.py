"""nvcc is that of torch's CUDA and compiles a kernel for each architecture of the row; the library loads."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from validate.checks.toolchain_compilers import command, headline
from validate.expect import Expect
from validate.fatbin import architectures
from validate.model import Check, Context, Result, failed, passed

CHECK = Check(
    title="nvcc compiles for the row's GPUs",
    explanation="CUDA_HOME (/opt/cuda) links to NVIDIA's wheels. The first error of the compiler names the tool, "
    "header or library that is missing; another version than torch's CUDA means that a wheel was replaced.",
    needs=("toolchain.compilers",),
    seconds=180,
)
VERSION = re.compile(r"release (\d+\.\d+), V([\d.]+)")
ARCH = re.compile(r"(sm|compute)_(\d+[a-z]?)")
KERNEL = "torchkiln_twice"
SOURCE = f"""\
#include <cuda_runtime.h>
__global__ void {KERNEL}(float *x, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}}
extern "C" int runtime() {{ int version = 0; cudaRuntimeGetVersion(&version); return version; }}
extern "C" int launch(float *x, int n) {{ {KERNEL}<<<1, 32>>>(x, n); return cudaGetLastError(); }}
"""


def applies(expect: Expect) -> bool:
    """CUDA rows that promise a compiler."""
    return expect.flavour == "devel" and expect.kind == "cuda"


def run(expect: Expect, context: Context) -> Result:
    """Found, of the right version, compiles, links statically, loads, and a host function of it answers."""
    nvcc, home = shutil.which("nvcc"), os.environ.get("CUDA_HOME", "")
    if nvcc is None:
        return failed("nvcc is not on PATH")
    if Path(nvcc) != Path(home, "bin/nvcc"):
        return failed(f"nvcc on PATH is {nvcc}, CUDA_HOME is {home or 'not set'}")
    stated = VERSION.search(command([nvcc, "--version"]).stdout)
    release, version = (stated[1], stated[2]) if stated else ("unknown", "unknown")
    if release != expect.toolkit:
        return failed(f"nvcc is of CUDA {release}, the row says {expect.toolkit}", nvcc=version)
    wanted, library = row_archs(expect), context.scratch / "twice.so"
    output = built(nvcc, wanted, library, context.host["compile_workers"])
    if not library.exists():
        return failed(f"nvcc cannot build a library: {headline(output)}", nvcc=version, output=output[-2000:])
    found = architectures(library.read_bytes(), KERNEL)
    data = {"nvcc": version, "archs": list(found), "runtime": ctypes.CDLL(str(library)).runtime()}
    problems = judged(expect, found, data["runtime"])
    return failed("; ".join(problems), **data) if problems else passed(f"{version} for {', '.join(found)}", **data)


def built(nvcc: str, archs: Sequence[str], library: Path, workers: int) -> str:
    """What nvcc says; the library is there if it could be built."""
    source = library.with_suffix(".cu")
    source.write_text(SOURCE, encoding="ascii")
    options = ["-shared", "-Xcompiler", "-fPIC", "--no-compress", "--threads", str(workers), *gencode(archs)]
    return command([nvcc, *options, str(source), "-o", str(library)]).stdout


def judged(expect: Expect, found: Sequence[str], runtime: int) -> list[str]:
    """What speaks against a library that was built for the row; pure."""
    missing = [arch for arch in row_archs(expect) if plain(arch) not in found]
    problems = [f"the kernel is not there for {', '.join(missing)}"] if missing else []
    stated = f"{runtime // 1000}.{runtime % 1000 // 10}"
    return problems + ([f"its CUDA runtime is {stated}, the row says {expect.toolkit}"] * (stated != expect.toolkit))


def row_archs(expect: Expect) -> Sequence[str]:
    """The row's GPU alone, else everything its wheels are built for; pure."""
    return (expect.gpu_arch,) if expect.gpu_arch else expect.archs


def gencode(archs: Sequence[str]) -> list[str]:
    """Options for machine code and PTX of each: nvcc's default where the row names none; pure."""
    found = [match for match in map(ARCH.fullmatch, archs) if match]
    return [f"-gencode=arch=compute_{match[2]},code={match[0]}" for match in found]


def plain(arch: str) -> str:
    """Without the letter suffix, which fat binaries keep elsewhere; pure."""
    return arch.rstrip("abcdefghijklmnopqrstuvwxyz")
