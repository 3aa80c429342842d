from __future__ import annotations

import platform
import sys

import pytest
from packaging.tags import sys_tags

from torchkiln.lock import tags

BOOKWORM = tags.supported("3.11", "x86_64", "2.36")


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or platform.machine() != "x86_64", reason="pip's answer is about this machine"
)
def test_the_order_is_that_of_pip() -> None:
    """For this machine's own Python and glibc the tags are, one by one, what pip would try."""
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert list(tags.supported(minor, "x86_64", platform.libc_ver()[1])) == list(sys_tags())


@pytest.mark.parametrize(
    ("filename", "fits"),
    [
        ("torch-2.5.1+cu118-cp311-cp311-linux_x86_64.whl", True),
        ("torch-2.5.1-cp311-cp311-manylinux1_x86_64.whl", True),
        ("numpy-2.2.6-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("ninja-1-py3-none-any.whl", True),
        ("thing-1-cp39-abi3-manylinux_2_28_x86_64.whl", True),
        ("torch-2.5.1-cp312-cp312-manylinux1_x86_64.whl", False),
        ("torch-2.5.1-cp311-cp311-manylinux_2_17_aarch64.whl", False),
        ("torch-2.9.0-cp311-cp311-manylinux_2_39_x86_64.whl", False),
        ("torch-2.5.1-cp311-none-macosx_11_0_arm64.whl", False),
        ("thing-1-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("thing.whl", False),
    ],
)
def test_a_wheel_fits_by_python_machine_and_glibc(filename: str, fits: bool) -> None:  # noqa: FBT001  a table
    """What another Python, machine or C library needs is no wheel for this base."""
    assert (tags.rank(filename, BOOKWORM) is not None) is fits


def test_other_machines_begin_with_manylinux2014() -> None:
    """PEP 600: the older profiles exist for x86_64 only."""
    arm = {tag.platform for tag in tags.supported("3.11", "aarch64", "2.36")}
    assert "manylinux2014_aarch64" in arm
    assert not {"manylinux1_aarch64", "manylinux2010_aarch64"} & arm
