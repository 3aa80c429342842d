"""/opt/venv around the wheels: the interpreter's links, protection of the trio, login shells, cache folders."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.layers.archive import Entry, directory, order, write_layer
from torchkiln.layers.install import PREFIX as VENV
from torchkiln.layers.install import SITE

if TYPE_CHECKING:
    from torchkiln.layers.archive import Content
    from torchkiln.oci.image import Layer
    from torchkiln.oci.store import Store
    from torchkiln.specs import EnvironmentSpec

VARIABLES = {
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "VIRTUAL_ENV": "/opt/venv",
    "PYTHONNOUSERSITE": "1",
    "TORCHINDUCTOR_CACHE_DIR": "/tmp/torch/inductor",  # noqa: S108  a path in the image
    "TRITON_CACHE_DIR": "/tmp/torch/triton",  # noqa: S108
    "TORCH_EXTENSIONS_DIR": "/tmp/torch/extensions",  # noqa: S108
}
"""What login shells fall back to; equal to what plan.environment() sets (a test holds them together)."""
_PYVENV = """\
home = {home}
include-system-site-packages = false
version = {python}
"""
_ACTIVATE = """\
# Use by: . /opt/venv/bin/activate     The image has it active already; this is for shells that lost it.

deactivate() {
    if [ -n "${_OLD_VIRTUAL_PATH:-}" ]; then PATH="$_OLD_VIRTUAL_PATH"; export PATH; unset _OLD_VIRTUAL_PATH; fi
    if [ -n "${_OLD_VIRTUAL_PS1+set}" ]; then PS1="$_OLD_VIRTUAL_PS1"; unset _OLD_VIRTUAL_PS1; fi
    unset VIRTUAL_ENV VIRTUAL_ENV_PROMPT
    hash -r 2>/dev/null || true
    if [ "${1:-}" != nondestructive ]; then unset -f deactivate; fi
}

deactivate nondestructive
VIRTUAL_ENV=/opt/venv
VIRTUAL_ENV_PROMPT='(venv) '
export VIRTUAL_ENV VIRTUAL_ENV_PROMPT
_OLD_VIRTUAL_PATH="$PATH"
PATH="$VIRTUAL_ENV/bin:$PATH"
export PATH
if [ -z "${VIRTUAL_ENV_DISABLE_PROMPT:-}" ]; then
    _OLD_VIRTUAL_PS1="${PS1:-}"
    PS1="$VIRTUAL_ENV_PROMPT${PS1:-}"
    export PS1
fi
hash -r 2>/dev/null || true
"""
_PROFILE = """\
# Login shells (bash -l, su -, ssh) begin with another PATH and without the image's variables; what is set stays.
case ":$PATH:" in
    *:/opt/venv/bin:*) ;;
    *) PATH="/opt/venv/bin:$PATH" ;;
esac
export PATH
{exports}"""
_CONSTRAINTS = """\
# The torch of this image was built and validated together with its CUDA or ROCm libraries and its companions.
# pip keeps it, for /opt/venv only and also while it builds packages from source.
# To lift that, once: PIP_CONFIG_FILE=/dev/null pip install …      for good: delete /opt/venv/pip.conf
{lines}"""
_PIP = """\
[global]
constraint = /opt/venv/constraints.txt
build-constraint = /opt/venv/constraints.txt
"""
_UV = """\
# uv does not read pip.conf. The torch of this image was built and validated together with its companions: uv keeps it.
# To lift that, once: uv --no-config pip install …      for good: delete this file
constraint-dependencies = [{quoted}]
build-constraint-dependencies = [{quoted}]
"""
_SYSTEM = """\
/opt/venv/lib/python{python}/site-packages
import torchkiln_startup
"""


def entries(spec: EnvironmentSpec) -> list[tuple[Entry, Content]]:
    """What the layer holds, sorted."""
    python = spec.python
    quoted = ", ".join(f'"{constraint}"' for constraint in spec.protected)
    ours = {
        f"{VENV}/pyvenv.cfg": _PYVENV.format(home=posixpath.dirname(spec.interpreter), python=python),
        f"{VENV}/pip.conf": _PIP,
        f"{VENV}/constraints.txt": _CONSTRAINTS.format(lines="".join(f"{line}\n" for line in spec.protected)),
        f"{VENV}/bin/activate": _ACTIVATE,
        f"{SITE}/torchkiln_startup.py": Path(__file__).with_name("startup.py").read_text(encoding="utf-8"),
        f"{SITE}/torchkiln_startup.pth": "import torchkiln_startup\n",
    }
    systems = {
        "etc/profile.d/torchkiln.sh": _PROFILE.format(exports=_exports(spec)),
        "etc/uv/uv.toml": _UV.format(quoted=quoted),
        f"{_packages(spec)}/zz-opt-venv.pth": _SYSTEM.format(python=python),
    }
    links = {
        f"{VENV}/bin/python": f"{posixpath.dirname(spec.interpreter)}/python{python}",
        f"{VENV}/bin/python3": "python",
        f"{VENV}/bin/python{python}": "python",
        f"{VENV}/lib/python{python}": "python",
        f"{VENV}/lib64": "lib",
    }
    found: list[tuple[Entry, Content]] = [
        (directory(path), None) for path in (VENV, f"{VENV}/bin", f"{VENV}/lib", SITE)
    ]
    found += [(Entry(path=path, kind="symlink", mode=0o777, target=target), None) for path, target in links.items()]
    found += [(Entry(path=path, kind="file", mode=0o664), text.encode()) for path, text in ours.items()]
    found += [(Entry(path=path, kind="file", mode=0o644), text.encode()) for path, text in systems.items()]
    return sorted(found, key=lambda pair: order(pair[0].path))


def _packages(spec: EnvironmentSpec) -> str:
    """Where the system's Python looks besides: Debian's looks into dist-packages, others into their own folder."""
    prefix = posixpath.dirname(posixpath.dirname(spec.interpreter)).strip("/")
    return "usr/lib/python3/dist-packages" if prefix == "usr" else f"{prefix}/lib/python{spec.python}/site-packages"


def build(store: Store, spec: EnvironmentSpec) -> Layer:
    """The environment layer."""
    return write_layer(store, spec.title, entries(spec))


def _exports(spec: EnvironmentSpec) -> str:
    """Shell lines that set what is missing."""
    versions = [line.removeprefix("torch==") for line in spec.protected if line.startswith("torch==")]
    variables = VARIABLES | ({"PYTORCH_VERSION": versions[0]} if versions else {})
    assert all(re.fullmatch(r"[\w./+-]+", value) for value in variables.values())  # noqa: S101  else quoting is needed
    return "".join(f'export {name}="${{{name}:-{value}}}"\n' for name, value in variables.items())
