"""What Python runs at its start: own caches, a name for a nameless uid, pip without isolation, no trials by Inductor.

Its text goes into images, where a .pth file runs it.

The image's defaults lie under /tmp/torch, which belongs to the first user who needs it. Where that is somebody else,
or can't be written, the caches go to /tmp/torch-<uid>. Compiled code is executed from there, so a folder counts only
if no stranger could have put something into it. Variables that say anything else are the user's own and stay.
Standard library alone, no subprocess, a few system calls, and it never raises: it runs at every start of Python.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "TORCH_EXTENSIONS_DIR": "extensions"}
ROOT = "/tmp/torch"  # noqa: S108  shared on purpose; who may use it is checked
SHIPPED = "/opt/torchkiln/cache"
VARIABLE = "TORCHINDUCTOR_VEC_ISA_OK"
COMPILER = "/usr/bin/g++"
"""Of the image; another one that comes first on PATH is the user's."""


def point(environ: os._Environ[str] | dict[str, str], uid: int, root: str = ROOT, shipped: str = SHIPPED) -> None:
    """Set the variables that still have the image's defaults, or none; copy what the image ships there first."""
    names = [name for name in FOLDERS if _default(environ.get(name, ""), name, uid, root)]
    if not names:
        return
    folder = next((each for each in (root, f"{root}-{uid}") if _usable(each, uid)), None)
    if folder is None:
        import tempfile  # noqa: PLC0415  rarely needed, and not cheap

        folder = tempfile.mkdtemp(prefix=f"{os.path.basename(root)}-{uid}-", dir=os.path.dirname(root))  # noqa: PTH119, PTH120
    for name in names:
        environ[name] = f"{folder}/{FOLDERS[name]}"
        _warm(f"{shipped}/{FOLDERS[name]}", environ[name])


def _default(value: str, name: str, uid: int, root: str) -> bool:
    """Whether a value is the image's, or was made by this module for another user; what it made for us stays."""
    start, _, end = value.rpartition("/")
    owner = start.removeprefix(f"{root}-")
    ours = not value or start == root or (owner != start and owner.isdigit() and owner != str(uid))
    return ours and end in ("", FOLDERS[name])


def _usable(folder: str, uid: int) -> bool:
    """Make the folder, or accept one with caches that this user may write and no stranger may."""
    try:
        os.mkdir(folder, 0o700)  # noqa: PTH102  pathlib would double the cost of this module
    except FileExistsError:
        pass
    except OSError:
        return False
    below = [f"{folder}/{name}" for name in FOLDERS.values()]
    return _safe(folder, uid) and all(_safe(path, uid) for path in below if os.path.lexists(path))


def _safe(folder: str, uid: int) -> bool:
    """A real folder of this user, or of root, who shared it on purpose."""
    about = os.lstat(folder)
    own = stat.S_ISDIR(about.st_mode) and about.st_uid in (uid, 0) and not about.st_mode & stat.S_IWOTH
    return own and os.access(folder, os.W_OK | os.X_OK)


def _warm(source: str, target: str) -> None:
    """Copy a shipped cache, whole or not at all: used in place it would have to be written to (lock files)."""
    if not os.path.isdir(source) or os.path.lexists(target):  # noqa: PTH112
        return
    import shutil  # noqa: PLC0415  rarely needed

    work = f"{target}.{os.getpid()}"
    try:
        shutil.copytree(source, work, symlinks=True)
        os.rename(work, target)  # noqa: PTH104
    except OSError:  # another process was first, or there is no room: torch fills the cache itself
        shutil.rmtree(work, ignore_errors=True)


def name(environ: os._Environ[str] | dict[str, str], uid: int) -> None:
    """Set LOGNAME where nothing else names the user: `getpass.getuser()` raises for a uid without a passwd row.

    torch asks for the name while Inductor is imported, wherever its caches lie: 2.8.0 does, 2.13.0 falls back to this
    very name. It is set in Python's own environment only, and differs by uid, since it becomes part of folder names.
    """
    if any(environ.get(variable) for variable in ("LOGNAME", "USER", "LNAME", "USERNAME")):
        return
    import pwd  # noqa: PLC0415  for those who have no name

    try:
        pwd.getpwuid(uid)
    except KeyError:
        environ["LOGNAME"] = f"uid_{uid}"


def unconstrain(environ: os._Environ[str] | dict[str, str], arguments: list[str]) -> None:
    """Lift the build constraint of pip.conf from a pip that builds without isolation, which refuses one beside it.

    Isolated builds are held to the image's torch by it; without isolation that torch is the one they see anyway. A
    blank variable overrides pip's file; one that says anything is the user's own and stays.
    """
    if "--no-build-isolation" in arguments or environ.get("PIP_NO_BUILD_ISOLATION"):
        environ.setdefault("PIP_BUILD_CONSTRAINT", " ")


class Vectors:
    """A finder that changes one setting of Inductor when that is imported: that the compiler builds AVX2 and AVX512.

    Unless told, Inductor compiles a file for either before its first kernel, in each new cache, and starts a Python to
    load it: 4.4 of 6.8 seconds of a first call (2.5.1, 2 cores). The compiler is the image's, and its validation tries
    just that (compile.vectors). Which extensions a CPU has, and whether AMX, VNNI and bf16 can be built, Inductor finds
    out as ever.
    """

    settings = "torch._inductor.config"

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ANN401  as Python has them
        """The settings' module, as other finders have it but for this; None for every other.

        The others are asked directly: importlib.util would wait for the parent package with the import lock held.
        """
        if name != self.settings:
            return None
        try:
            found = (each.find_spec(name, path, target) for each in sys.meta_path if each is not self)
            spec = next((each for each in found if each is not None), None)
            if spec is not None:
                _telling(spec.loader)
        except Exception:  # noqa: BLE001  then it is imported unchanged
            return None
        return spec


def _telling(loader: Any) -> None:  # noqa: ANN401  whatever has exec_module
    """Have a loader tell the settings, which it loads next, unless another compiler is used or somebody said otherwise.

    By torch's own variable, while they are loaded: what is set later holds for one thread (2.13). 2.5 and 2.6 know no
    such variable, and there it holds for all.
    """

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # other modules may have the same loader
        told = tells(os.environ)
        if told:
            os.environ[VARIABLE] = "1"
        try:
            loader.exec_module(module)
        finally:
            if told:
                os.environ.pop(VARIABLE, None)  # programs that are started later may have another torch
        if told:
            _tell(module)

    loader.exec_module = exec_module


def _tell(settings: ModuleType) -> None:
    """Unless the release knows already, has no such switch, or does not let it be set."""
    try:
        if settings.cpp.vec_isa_ok is None:
            settings.cpp.vec_isa_ok = True
    except Exception:  # noqa: BLE001  then it stays as it is
        return


def tells(environ: os._Environ[str] | dict[str, str]) -> bool:
    """Whether Inductor would use this image's compiler, and nobody said otherwise."""
    import shutil  # noqa: PLC0415  rarely needed, and torch has it by then

    stated = any(environ.get(variable) for variable in ("CXX", VARIABLE))
    return not stated and os.uname().machine == "x86_64" and shutil.which("g++") == COMPILER


def start() -> None:
    """Do it for this process, silently."""
    try:
        if not any(isinstance(each, Vectors) for each in sys.meta_path):
            sys.meta_path.insert(0, Vectors())
        unconstrain(os.environ, sys.orig_argv)
        name(os.environ, os.getuid())
        point(os.environ, os.geteuid())
    except Exception:  # noqa: BLE001  a cache is no reason to keep Python from starting
        return


if __name__ == "torchkiln_startup":
    start()
