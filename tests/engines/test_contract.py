"""What every engine promises, tried on each that this machine has."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from torchkiln.engines import Command, Limits, Mount
from torchkiln.errors import EngineError
from torchkiln.layers.archive import Entry, write_layer
from torchkiln.oci.image import append

if TYPE_CHECKING:
    from pathlib import Path

    from torchkiln.engines import Engine
    from torchkiln.oci.image import Image
    from torchkiln.oci.store import Store

each = pytest.mark.parametrize(
    "engine",
    [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("docker", "sandbox")],
    indirect=True,
)


def said(engine: Engine, image: Image, script: str, **command: object) -> str:
    """What a shell in the image prints."""
    outcome = engine.run(image, Command(argv=("sh", "-c", script), **command))  # type: ignore[arg-type]
    assert outcome.status == 0, outcome
    return outcome.stdout.decode().strip()


@each
@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "sh -c 'kill -9 $$'; exit $?"), 137),
        (("nosuch",), 127),
        (("/bin/nosuch",), 127),
        (("/etc/passwd",), 126),
    ],
)
def test_exit_status(engine: Engine, toy: Image, argv: tuple[str, ...], status: int) -> None:
    """127 missing, 126 not executable, 128+n by signal, else the command's own."""
    assert engine.run(toy, Command(argv=argv)).status == status


@each
def test_command_line(engine: Engine, toy: Image) -> None:
    """The image's command is the default; an entrypoint stays in front, is replaced, or taken away."""
    assert engine.run(toy, Command(argv=())).stdout == b"default\n"
    assert engine.run(toy, Command(argv=("a", "b"), entrypoint=("echo",))).stdout == b"a b\n"
    assert engine.run(toy, Command(argv=("echo", "c"), entrypoint=())).stdout == b"c\n"


@each
def test_streams(engine: Engine, toy: Image) -> None:
    """Both streams are told apart in the outcome and passed on as they come."""
    seen: list[bytes] = []
    outcome = engine.run(toy, Command(argv=("sh", "-c", "echo out; echo err >&2")), output=seen.append)
    assert (outcome.stdout, outcome.stderr) == (b"out\n", b"err\n")
    assert sorted(seen) == [b"err\n", b"out\n"]


@each
def test_variables(engine: Engine, toy: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command sees the image's variables and its own; nothing of this process."""
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    found = said(engine, toy, "env", env={"SIZE": "a = b\\n"}, unset=("COLOUR",))
    names = {line.split("=")[0] for line in found.splitlines() if "=" in line}
    assert names - {"HOSTNAME", "PWD", "SHLVL"} == {"PATH", "HOME", "SIZE"}  # the shell's own, Docker's HOSTNAME
    assert said(engine, toy, "echo $COLOUR $HOME") == "green /home/app"


@each
def test_working_dir(engine: Engine, toy: Image) -> None:
    """It is made if the image lacks it."""
    assert said(engine, toy, "pwd", working_dir="/not/there") == "/not/there"


@each
def test_image_is_never_changed(engine: Engine, toy: Image) -> None:
    """What a command writes is gone with it; a read-only root cannot be written at all."""
    assert said(engine, toy, "echo x >/etc/passwd; echo y >/new; cat /etc/passwd", user="0:0") == "x"
    assert said(engine, toy, "head -n1 /etc/passwd; ls /new 2>&1 || true", user="0:0").startswith("root:x:0:0")
    assert engine.run(toy, Command(argv=("touch", "/x"), user="0:0", read_only=True)).status == 1


@each
def test_mounts(engine: Engine, toy: Image, tmp_path: Path) -> None:
    """Folders of the host are read-only unless asked otherwise, and visible below folders the image lacks."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in/file").write_text("hello")
    mounts = (
        Mount(source=tmp_path / "in", target="/deep/in"),
        Mount(source=tmp_path / "out", target="/deep/out", writable=True),
    )
    script = "cat /deep/in/file; touch /deep/in/x 2>/dev/null || cp /deep/in/file /deep/out/"
    assert said(engine, toy, script, mounts=mounts, user="0:0") == "hello"
    assert (tmp_path / "out/file").read_text() == "hello"
    assert not (tmp_path / "in/x").exists()
    with pytest.raises(EngineError, match="does not exist"):
        engine.run(toy, Command(argv=("true",), mounts=(Mount(source=tmp_path / "none", target="/x"),)))


@each
def test_temporary_folders(engine: Engine, toy: Image) -> None:
    """A tmpfs has the asked size, and can be written on a read-only root; /dev/shm has its size, too."""
    script = "df -k /scratch /dev/shm | awk 'NR>1 {print $2}'; touch /scratch/x"
    found = said(
        engine, toy, script, tmpfs={"/scratch": "size=1m,exec"}, read_only=True, limits=Limits(shm_bytes=2 << 20)
    )
    assert found.split() == ["1024", "2048"]


@each
def test_no_network(engine: Engine, toy: Image) -> None:
    """Unless asked for, there is the loopback interface alone, and it answers to `localhost`."""
    assert said(engine, toy, "ls /sys/class/net 2>/dev/null || awk 'NR>2 {print $1}' /proc/net/dev").strip(":") == "lo"
    script = "nc -l -p 7000 -e echo hi & until nc localhost 7000 2>/dev/null; do sleep 0.05; done"
    assert said(engine, toy, script) == "hi"


@each
def test_time_limit(engine: Engine, toy: Image) -> None:
    """A command that outstays its time gets TERM first, and the outcome says so."""
    script = "trap 'echo bye; exit 3' TERM; while :; do sleep 0.05; done"
    outcome = engine.run(toy, Command(argv=("sh", "-c", script), limits=Limits(seconds=3)))
    assert (outcome.timed_out, outcome.status, outcome.stdout) == (True, 3, b"bye\n")


@each
def test_one_that_will_not_end(engine: Engine, toy: Image) -> None:
    """TERM ignored is followed by KILL."""
    outcome = engine.run(toy, Command(argv=("sh", "-c", "trap '' TERM; sleep 60; sleep 60"), limits=Limits(seconds=2)))
    assert (outcome.timed_out, outcome.status) == (True, 137)


@each
def test_limits(engine: Engine, toy: Image) -> None:
    """Memory, processes and CPU time are bounded, where the engine does not say it can't."""
    if "limits" in engine.restrictions():
        pytest.skip("this engine can't enforce limits here, and says so")
    hungry = "dd if=/dev/zero of=/dev/null bs=200M count=1 2>/dev/null; echo $?"
    assert said(engine, toy, hungry, limits=Limits(memory_bytes=64 << 20)) == "137"
    forks = "for i in $(seq 40); do sleep 1 & done"
    assert engine.run(toy, Command(argv=("sh", "-c", forks), limits=Limits(processes=60))).status == 0
    refused = engine.run(toy, Command(argv=("sh", "-c", forks), limits=Limits(processes=20)))
    assert (refused.status, b"can't fork" in refused.stderr) == (2, True), refused


@each
def test_users(engine: Engine, toy: Image) -> None:
    """A command runs as the asked uid and gid, known to the image or not, and owns what it makes."""
    if "users" in engine.restrictions():
        pytest.skip("this engine has one user only, and says so")
    assert said(engine, toy, "id -u; id -g; id -G") == "1000\n0\n0"
    assert said(engine, toy, "id -u; id -g; id -G", user="4242:4242") == "4242\n4242\n4242"
    assert said(engine, toy, "id -u; id -g; id -G; echo $HOME", user="app") == "1000\n1000\n1000 44\n/home/app"
    assert said(engine, toy, "touch /tmp/x; stat -c %u:%g /tmp/x; stat -c %u /bin", user="4242:4243") == "4242:4243\n0"
    assert engine.run(toy, Command(argv=("touch", "/bin/x"), user="4242:0")).status == 1
    assert said(engine, toy, "touch /bin/x; chown 5:6 /bin/x; stat -c %u:%g /bin/x", user="0:0") == "5:6"


@each
def test_many_layers_under_a_long_home(engine: Engine, store: Store, toy: Image) -> None:
    """120 layers work however long the cache folder's path is."""
    more = tuple(
        write_layer(store, f"layer {n}", [(Entry(path=f"many/{n}", kind="file", mode=0o644), b"%d" % n)])
        for n in range(118)
    )
    assert said(engine, append(toy, more), "ls /many | wc -l; cat /many/117") == "118\n117"


@each
def test_commands_side_by_side(engine: Engine, toy: Image) -> None:
    """Several commands may run in one image at once, from threads."""
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda n: engine.run(toy, Command(argv=("echo", str(n)))), range(8)))
    assert [outcome.stdout for outcome in outcomes] == [b"%d\n" % n for n in range(8)]
