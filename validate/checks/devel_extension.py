"""A CUDA extension of torch builds through torch.utils.cpp_extension, without a GPU; with one, its kernel runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

from validate.checks.devel_nvcc import applies, plain, row_archs
from validate.checks.toolchain_compilers import headline
from validate.expect import Expect
from validate.fatbin import architectures
from validate.model import Check, Context, Result, failed, passed

__all__ = ["CHECK", "applies", "run"]

CHECK = Check(
    title="a CUDA extension of torch builds and loads",
    explanation="Headers of torch include those of cuBLAS, cuSOLVER and cuSPARSE, which must lie under CUDA_HOME and "
    "be of torch's CUDA. The first error of the compiler names what is missing. Where no GPU is visible, "
    "TORCH_CUDA_ARCH_LIST must say what to compile for.",
    needs=("torch.import", "toolchain.headers", "devel.nvcc"),
    seconds=400,
)
FAULT = re.compile(r"error: |#error |cannot find |undefined (reference|symbol)")
"""As compilers, linker and loader begin; the commands hold words such as -Wfatal-errors."""
KERNEL = "torchkiln_scale"
BINDING = """\
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/extension.h>
void scale(float *x, long n, float factor, cudaStream_t stream);
int toolkit() { return CUDART_VERSION; }
torch::Tensor scaled(torch::Tensor x, double factor) {
    if (!x.is_cuda()) return x * factor;
    const c10::cuda::CUDAGuard guard(x.device());
    auto y = x.clone();
    scale(y.data_ptr<float>(), y.numel(), (float)factor, at::cuda::getCurrentCUDAStream());
    return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("toolkit", &toolkit); m.def("scaled", &scaled); }
"""
DEVICE = f"""\
#include <cuda_runtime.h>
__global__ void {KERNEL}(float *x, long n, float factor) {{
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}}
void scale(float *x, long n, float factor, cudaStream_t stream) {{
    {KERNEL}<<<(n + 255) / 256, 256, 0, stream>>>(x, n, factor);
}}
"""


def run(expect: Expect, context: Context) -> Result:
    """Headers of torch in the host code, the kernel apart: those headers would be read once for each architecture."""
    import torch
    from torch.utils import cpp_extension

    if not os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return failed("TORCH_CUDA_ARCH_LIST is not set: where torch sees no GPU, it does not know what to compile for")
    if not cpp_extension.CUDA_HOME:
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        return failed(f"torch is built for {built} and finds no toolkit: nothing can be compiled against it")
    sources = [context.scratch / "binding.cpp", context.scratch / "device.cu"]
    for path, text in zip(sources, (BINDING, DEVICE)):
        path.write_text(text, encoding="ascii")
    wanted = row_archs(expect)
    os.environ["MAX_JOBS"] = str(context.host["compile_workers"])
    try:
        module = cpp_extension.load(
            "torchkiln_devel",
            [str(path) for path in sources],
            build_directory=str(context.scratch),
            extra_cflags=["-O0", "-Wfatal-errors"],
            extra_cuda_cflags=["--no-compress"],
        )
    except (RuntimeError, OSError) as error:  # of a compiler, of ninja, or of the loader
        return failed(f"the extension does not build or load: {fault(str(error))}", output=str(error)[-3000:])
    found = architectures(Path(module.__file__).read_bytes(), KERNEL)
    data = {"archs": list(found), "toolkit": module.toolkit(), "cuda_home": cpp_extension.CUDA_HOME}
    if missing := [arch for arch in wanted if plain(arch) not in found]:
        return failed(f"the kernel is not there for {', '.join(missing)}", **data)
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        x = torch.arange(1000.0, device=device)
        if not torch.equal(module.scaled(x, 3.0).cpu(), torch.arange(1000.0) * 3):
            return failed(f"the extension answers wrongly on {device}", **data)
    return passed(f"loaded, ran on {' and '.join(devices)}: {', '.join(found)}", **data)


def fault(output: str) -> str:
    """The line of ninja's output that names what is wrong, which is none of the commands it repeats; pure."""
    lines = (line.strip() for line in output.splitlines())
    return next((line for line in lines if FAULT.search(line)), headline(output))[:300]
