"""Static checks of the files: folders, leftovers, secrets, modes, driver and CUDA files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchkiln.inspect.subject import StaticCheck, Subject
from torchkiln.matrix.target import DEVEL

if TYPE_CHECKING:
    from torchkiln.inspect.listing import Entry
    from torchkiln.matrix.target import Target

WORLD_WRITABLE = 0o002
STICKY = 0o1000
SET_ID = 0o6000
GROUP_WRITABLE = 0o020

FOLDERS = {"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700}
GROUP_WRITES = ("home/torch", "workspace", "opt/venv", "opt/venv/bin", "opt/venv/lib/python/site-packages")
"""What any uid with gid 0 may write, so that `pip install` works for users that no passwd row names."""
OPEN_FOLDERS = {"workspace"}
"""Writable for everybody and not sticky, on purpose."""
SET_ID_PROGRAMS = frozenset(
    {"chage", "chfn", "chsh", "expiry", "gpasswd", "mount", "newgrp", "passwd", "su", "umount", "unix_chkpwd"}
)
"""What Debian ships set-uid or set-gid in a minimal installation."""
SET_ID_FOLDERS = frozenset({"var/mail", "var/local", "usr/local"})

EMPTY = re.compile(r"^(?:etc/(?:resolv\.conf|hostname|machine-id)|var/lib/dbus/machine-id|var/log/.+)$")
"""Files that may be there but say nothing: each engine or host writes its own."""
LEFT = re.compile(
    r"^(?:tmp|var/tmp)/."
    r"|^var/lib/apt/lists/(?!lock$|partial$|auxfiles$)."
    r"|^var/cache/apt/(?:.+\.bin|archives/.+\.deb)$"
    r"|^(?:etc/(?:passwd|group|shadow|gshadow|subuid|subgid)-|var/(?:lib/dpkg|cache/debconf)/.+-old)$"
    r"|(?:^|/)\.(?:cache|npm|conda|bash_history|python_history|wget-hsts)(?:/|$)"
    r"|^(?:root|home/[^/]+)/\.config(?:/|$)"
    r"|^core(?:\.\d+)?$"
    r"|^var/crash/."
)
DRIVER = re.compile(r"^lib(?:cuda|nvidia-\w[\w-]*|nvcuvid|cudadebugger)\.so(?:\.|$)")
LOADER_PATH = re.compile(r"^(?:usr/)?(?:local/)?lib(?:32|64)?(?:/[^/]+-linux-gnu)?/[^/]+$")
"""Where ld.so looks without being told."""
CUDA_LIBRARY = re.compile(
    r"^lib(?:cudart|cublas|cublasLt|cudnn\w*|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvJitLink|torch_cuda\w*"
    r"|torch_hip|amdhip64|rocblas|MIOpen|c10_cuda|c10_hip)(?:-[0-9a-f]+)?\.so(?:\.|$)"
)
COMPILERS = frozenset({"nvcc", "hipcc"})


def folders(subject: Subject) -> list[str]:
    """Known folders have their modes, and no member lacks its parent folders."""
    problems = []
    for path, mode in FOLDERS.items():
        entry = subject.tree.get(path)
        if entry is None or entry.mode != mode:
            problems.append(f"/{path} has mode {_mode(entry)}, not {mode:04o}")
    for path in GROUP_WRITES:
        entry = subject.tree.get(path)
        if entry is None or not entry.mode & GROUP_WRITABLE:
            problems.append(f"/{path} has mode {_mode(entry)}: group 0 cannot write it")
    orphans = {path.rpartition("/")[0] for path in subject.tree} - set(subject.tree) - {""}
    return problems + [f"/{path} is no member of any layer, but its files are" for path in sorted(orphans)[:5]]


def links(subject: Subject) -> list[str]:
    """No member is reached through a folder that a lower layer made a symbolic link: engines disagree about those."""
    symlinks: set[str] = set()
    problems = []
    for layer in subject.layers:
        for entry in layer.entries:
            through = next((parent for parent in _parents(entry.path) if parent in symlinks), "")
            problems += [f"/{entry.path} goes through the link /{through}"] if through else []
        symlinks |= {entry.path for entry in layer.entries if entry.kind == "symlink"}
        symlinks -= {entry.path for entry in layer.entries if entry.kind != "symlink"}
    return problems


def leftovers(subject: Subject) -> list[str]:
    """Nothing that building leaves behind, in any layer that we made."""
    ours = [entry for number, entry in subject.members() if number >= subject.foreign]
    found = [entry.path for entry in ours if entry.kind != "folder" and LEFT.search(entry.path)]
    spoken = [entry.path for entry in ours if entry.size and EMPTY.search(entry.path)]
    return [f"/{path} was left behind" for path in found] + [f"/{path} is not empty" for path in spoken]


def secrets(subject: Subject) -> list[str]:
    """Nothing in any layer looks like a secret, deleted files included."""
    return [
        f"/{path} in layer {number} looks like {what}"
        for number, layer in enumerate(subject.layers)
        for path, what in layer.secrets
    ]


def modes(subject: Subject) -> list[str]:
    """World-writable only where meant, set-uid only what Debian ships."""
    problems = []
    for path, entry in subject.tree.items():
        if entry.kind == "symlink":
            continue
        sticky_folder = entry.kind == "folder" and (entry.mode & STICKY or path in OPEN_FOLDERS)
        if entry.mode & WORLD_WRITABLE and not sticky_folder:
            problems.append(f"/{path} is writable for everybody ({entry.mode:04o})")
        if entry.mode & SET_ID and not _may_set_id(path, entry):
            problems.append(f"/{path} sets its user or group ({entry.mode:04o})")
    return problems


def driver(subject: Subject) -> list[str]:
    """The driver is the host's: no driver library anywhere, no stub but in devel, none where the loader looks."""
    devel = subject.target.flavour.id == DEVEL
    problems = []
    for path in subject.tree:
        stub = "/stubs/" in path
        if DRIVER.search(path.rpartition("/")[2]) and (LOADER_PATH.search(path) or not (stub and devel)):
            problems.append(f"/{path} is a {'stub' if stub else 'library'} of the driver")
    if "LD_LIBRARY_PATH" in subject.image.config.env:
        problems.append("LD_LIBRARY_PATH is set: it overrides the libraries that torch was tested with")
    return problems


def toolkit(subject: Subject) -> list[str]:
    """No CUDA or ROCm in a CPU row; no nvcc or hipcc but in devel."""
    names = [(path, path.rpartition("/")[2]) for path, entry in subject.tree.items() if entry.kind != "folder"]
    devel = subject.target.flavour.id == DEVEL
    compilers = [] if devel else [f"/{path} belongs to devel" for path, name in names if name in COMPILERS]
    cpu = subject.target.accelerator.kind == "cpu"
    libraries = [f"/{path} in a CPU row" for path, name in names if CUDA_LIBRARY.search(name)] if cpu else []
    return compilers + libraries


def _may_set_id(path: str, entry: Entry) -> bool:
    if entry.kind == "folder":
        return path in SET_ID_FOLDERS or path.startswith("usr/local/")
    return path.startswith(("usr/bin/", "usr/sbin/", "bin/", "sbin/")) and path.rpartition("/")[2] in SET_ID_PROGRAMS


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _mode(entry: Entry | None) -> str:
    return f"{entry.mode:04o}" if entry else "nothing: it is missing"


def _restricted(target: Target) -> bool:
    return target.accelerator.kind == "cpu" or target.flavour.id != DEVEL


CHECKS = (
    StaticCheck(
        id="static.folders",
        title="folders are there, with the right modes",
        explanation="Programs that need /tmp, a home or the environment's folders fail for some users, or a later "
        "layer changed a mode. The layer that wrote the folder last decides: correct it there.",
        judge=folders,
    ),
    StaticCheck(
        id="static.links",
        title="no file is reached through a symbolic link of a lower layer",
        explanation="Engines differ in whether they follow the link or replace it. Write to the real folder.",
        judge=links,
    ),
    StaticCheck(
        id="static.leftovers",
        title="nothing of the building host or of package managers is left",
        explanation="Caches make the image larger, logs and host files make it differ between hosts. "
        "Remove them in the layer that makes them: deleting later only hides them.",
        judge=leftovers,
    ),
    StaticCheck(
        id="static.secrets",
        title="nothing looks like a secret",
        explanation="Whoever pulls the image can read every layer. Revoke the secret, and keep it out of the build.",
        judge=secrets,
    ),
    StaticCheck(
        id="static.modes",
        title="world-writable and set-uid files are the known ones",
        explanation="Any process in the container could change the file, or become another user through it.",
        judge=modes,
    ),
    StaticCheck(
        id="static.driver",
        title="no driver library and no stub",
        explanation="The host's engine mounts the driver of the host; one in the image shadows it, and CUDA fails with "
        "error 803 or finds no device.",
        judge=driver,
    ),
    StaticCheck(
        id="static.toolkit",
        title="no nvcc in runtime flavours, no CUDA in CPU rows",
        explanation="The image is larger than its row promises, and a second CUDA may be loaded before torch's own.",
        judge=toolkit,
        applies=_restricted,
    ),
)
