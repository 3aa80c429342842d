"""The driver answers, and is not older than the row's floor; asked without torch, to tell host from image."""

from __future__ import annotations

import ctypes
from pathlib import Path

from validate.expect import Expect
from validate.model import GPU, Check, Context, Result, host_fault, passed

CHECK = Check(
    title="the driver answers and reaches the row's floor",
    explanation="The host's driver is missing in the container, broken, or too old for this row. Start with --gpus "
    "all, update the driver, or take a row of an older CUDA.",
    level=GPU,
    seconds=60,
)
CODES = {
    100: "no device is visible to this container",
    802: "the system is not ready: on NVSwitch machines the fabric manager must run",
    803: "driver and its user libraries differ: a driver library in the image, or an update without reboot",
    804: "a compatibility package is in use that this GPU does not support",
    999: "unknown error: often the host's driver needs a reload",
}
"""cuda.h, CUresult."""


def applies(expect: Expect) -> bool:
    """Rows with a GPU."""
    return expect.gpu_row


def run(expect: Expect, _context: Context) -> Result:
    """CUDA through libcuda and NVML; ROCm through its kernel module."""
    if expect.kind == "rocm":
        module = Path("/sys/module/amdgpu/version")
        version = module.read_text(encoding="ascii").strip() if module.is_file() else ""
        return amdgpu(expect, version)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return host_fault(f"the engine mounted no driver: {error}")
    status = cuda.cuInit(0)
    if status:
        return host_fault(f"cuInit gives {status}: {CODES.get(status, 'see CUresult in cuda.h')}", status=status)
    supported = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(supported))
    driver = driver_version()
    data = {"driver": driver, "cuda_of_driver": f"{supported.value // 1000}.{supported.value % 1000 // 10}"}
    if parts(driver) < parts(expect.driver_floor):
        return host_fault(f"driver {driver or 'unknown'} is older than the row's floor {expect.driver_floor}", **data)
    return passed(f"driver {driver}, for CUDA {data['cuda_of_driver']}", **data)


def amdgpu(expect: Expect, version: str) -> Result:
    """A driver of AMD's packages has a version, the kernel's own has none; pure."""
    if version and parts(version) < parts(expect.driver_floor):
        return host_fault(f"amdgpu {version} is older than the row's floor {expect.driver_floor}", driver=version)
    return passed(f"amdgpu {version or 'of the kernel itself'}", driver=version)


def driver_version() -> str:
    """From NVML; empty if it cannot say."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    text = ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(text, len(text)):
        return ""
    return text.value.decode()


def parts(version: str) -> tuple[int, ...]:
    """A version's numbers, for comparing; empty sorts lowest."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())
