"""/opt/cuda is a CUDA toolkit as compilers expect one, made of links into NVIDIA's wheels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.toys import unpacked
from torchkiln.layers import toolkit
from torchkiln.layers.archive import write_layer
from torchkiln.layers.install import SITE
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from pathlib import Path

NVIDIA = f"{SITE}/nvidia"
FILES = (
    f"{NVIDIA}/cu13/bin/nvcc",
    f"{NVIDIA}/cu13/bin/crt/link.stub",
    f"{NVIDIA}/cu13/include/cuda.h",
    f"{NVIDIA}/cu13/include/crt/mma.h",
    f"{NVIDIA}/cu13/include/crt/mma.hpp",
    f"{NVIDIA}/cu13/lib/libcudart.so.13",
    f"{NVIDIA}/cu13/lib/libcudart_static.a",
    f"{NVIDIA}/cu13/lib/libnvrtc-builtins.so.13.0",
    f"{NVIDIA}/cu13/lib/libcheckpoint.so",
    f"{NVIDIA}/cu13/nvvm/bin/cicc",
    f"{NVIDIA}/cudnn/include/cudnn.h",
    f"{NVIDIA}/cudnn/include/cuda.h",
    f"{NVIDIA}/cudnn/lib/__init__.py",
    f"{NVIDIA}/cudnn/lib/libcudnn.so.9",
    f"{NVIDIA}/nvshmem/include/device/x.h",
    f"{SITE}/torch/include/torch.h",
)


def test_tools_headers_and_libraries_are_where_compilers_look() -> None:
    """bin, include, nvvm and lib64 are real folders with one link an entry; `-lcudart` finds a plain name."""
    made = toolkit.links(FILES)
    assert made == {
        "opt/cuda/bin/crt": f"/{NVIDIA}/cu13/bin/crt",
        "opt/cuda/bin/nvcc": f"/{NVIDIA}/cu13/bin/nvcc",
        "opt/cuda/include/crt": f"/{NVIDIA}/cu13/include/crt",
        "opt/cuda/include/cuda.h": f"/{NVIDIA}/cu13/include/cuda.h",
        "opt/cuda/include/cudnn.h": f"/{NVIDIA}/cudnn/include/cudnn.h",
        "opt/cuda/lib": "lib64",
        "opt/cuda/lib64/libcheckpoint.so": f"/{NVIDIA}/cu13/lib/libcheckpoint.so",
        "opt/cuda/lib64/libcudart.so": "libcudart.so.13",
        "opt/cuda/lib64/libcudart.so.13": f"/{NVIDIA}/cu13/lib/libcudart.so.13",
        "opt/cuda/lib64/libcudart_static.a": f"/{NVIDIA}/cu13/lib/libcudart_static.a",
        "opt/cuda/lib64/libcudnn.so": "libcudnn.so.9",
        "opt/cuda/lib64/libcudnn.so.9": f"/{NVIDIA}/cudnn/lib/libcudnn.so.9",
        "opt/cuda/lib64/libnvrtc-builtins.so": "libnvrtc-builtins.so.13.0",
        "opt/cuda/lib64/libnvrtc-builtins.so.13.0": f"/{NVIDIA}/cu13/lib/libnvrtc-builtins.so.13.0",
        "opt/cuda/nvvm/bin": f"/{NVIDIA}/cu13/nvvm/bin",
    }


def test_order_of_the_files_does_not_matter() -> None:
    """The same wheels make the same layer."""
    assert toolkit.links(FILES) == toolkit.links(reversed(FILES))


def files_of(store: Store, archs: str) -> dict[str, bytes]:
    """What the layer holds besides links."""
    found = unpacked(store, write_layer(store, "toolkit", toolkit.entries(FILES, archs)))
    return {name: data for name, (entry, data) in found.items() if entry.isreg()}


def test_login_shells_find_nvcc_too(tmp_path: Path) -> None:
    """They begin with another PATH; what is set stays, and what is not known is not set."""
    script = files_of(Store(tmp_path), "8.0 12.0+PTX")["etc/profile.d/torchkiln-cuda.sh"]
    assert b'export CUDA_HOME="${CUDA_HOME:-/opt/cuda}"' in script
    assert b'PATH="/opt/cuda/bin:$PATH"' in script
    assert b'export TORCH_CUDA_ARCH_LIST="${TORCH_CUDA_ARCH_LIST:-8.0 12.0+PTX}"' in script
    assert b"ARCH_LIST" not in files_of(Store(tmp_path), "")["etc/profile.d/torchkiln-cuda.sh"]
