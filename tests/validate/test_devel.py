"""What the checks of a compiler ask for and how they judge what it made, without one."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from validate import fatbin
from validate.checks import devel_extension, devel_nvcc
from validate.expect import Expect

ROW = Expect(kind="cuda", flavour="devel", toolkit="13.0", archs=("sm_75", "sm_90", "sm_120", "compute_120"))


def entry(kind: int, arch: int, code: bytes, header: int = 64) -> bytes:
    """One entry of a fat binary as nvcc 13.0 writes it."""
    return struct.pack("<HHIQIIII", kind, 0x101, header, len(code), 0, 0, 65544, arch).ljust(header, b"\0") + code


def container(*entries: bytes) -> bytes:
    """A fat binary."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


CONTAINER = container(entry(2, 75, b"..twice.."), entry(2, 90, b"twice", header=96), entry(1, 90, b".entry twice("))


def test_architectures_of_a_kernel_are_read_from_every_fat_binary() -> None:
    """Machine code and PTX that hold the kernel count; others, and whatever lies between, do not."""
    data = b"\x7fELF" + CONTAINER + b"twice" + container(entry(2, 120, b"twice"), entry(2, 80, b"other")) + b"\0" * 9
    assert fatbin.architectures(data, "twice") == ("compute_90", "sm_120", "sm_75", "sm_90")
    assert fatbin.architectures(data, "nonesuch") == ()


@pytest.mark.parametrize("length", range(0, len(CONTAINER), 7))
def test_library_that_is_cut_off_is_read_as_far_as_it_goes(length: int) -> None:
    """Neither an error nor an endless loop, and nothing that is not there."""
    found = fatbin.architectures(CONTAINER[:length], "twice")
    assert set(found) < {"compute_90", "sm_75", "sm_90"}


def test_entry_without_a_size_ends_the_search() -> None:
    """A header of no length would be read forever."""
    assert fatbin.architectures(container(b"\0" * 400), "twice") == ()


def test_every_architecture_of_the_row_is_asked_for() -> None:
    """Machine code and PTX by their own options; a row with a GPU asks for that alone."""
    assert devel_nvcc.gencode(devel_nvcc.row_archs(ROW))[-2:] == [
        "-gencode=arch=compute_120,code=sm_120",
        "-gencode=arch=compute_120,code=compute_120",
    ]
    assert devel_nvcc.row_archs(replace(ROW, gpu_arch="sm_89")) == ("sm_89",)


def test_library_is_judged_by_its_code_and_its_runtime() -> None:
    """A GPU of the row without code, and a runtime of another CUDA, are told apart."""
    everything = ("compute_120", "sm_120", "sm_75", "sm_90")
    assert devel_nvcc.judged(ROW, everything, 13000) == []
    assert devel_nvcc.judged(ROW, everything[1:], 13000) == ["the kernel is not there for compute_120"]
    assert devel_nvcc.judged(ROW, everything, 13020) == ["its CUDA runtime is 13.2, the row says 13.0"]
    assert devel_nvcc.judged(replace(ROW, gpu_arch="sm_90a"), everything, 13000) == []


def test_reason_of_a_failed_build_is_the_compilers() -> None:
    """Not the command that ninja repeats, whose options speak of errors too."""
    output = """\
Error building extension 'x': [1/2] c++ -Wfatal-errors -c binding.cpp
FAILED: [code=1] binding.o
/opt/venv/torch/include/ATen/cuda/CUDAContextLight.h:11:10: fatal error: cusparse.h: No such file or directory
compilation terminated.
ninja: build stopped: subcommand failed.
"""
    assert devel_extension.fault(output).endswith("fatal error: cusparse.h: No such file or directory")
    assert devel_extension.fault("x\n/usr/bin/ld: cannot find -lcudart: No such file") == (
        "/usr/bin/ld: cannot find -lcudart: No such file"
    )
    assert (
        devel_extension.fault("Ninja is required to load C++ extensions") == "Ninja is required to load C++ extensions"
    )


def test_only_devel_rows_are_asked() -> None:
    """A compiler is promised by CUDA rows of flavour devel alone."""
    assert devel_nvcc.applies(ROW)
    assert not devel_nvcc.applies(replace(ROW, flavour="runtime"))
    assert not devel_nvcc.applies(replace(ROW, kind="cpu"))
