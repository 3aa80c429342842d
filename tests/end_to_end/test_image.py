"""What an image holds and promises, tried in Docker as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.kiln import ROW

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kiln import Row

pytestmark = [pytest.mark.network, pytest.mark.sandbox, pytest.mark.docker]
COMPILE = """
import torch
from torch._dynamo.utils import counters
x = torch.linspace(0, 1, 999)
y = torch.compile(lambda x: x * x + x.sin(), fullgraph=True)(x)
torch.testing.assert_close(y, x * x + x.sin())
assert counters["stats"]["unique_graphs"] == 1
print("compiled", counters["inductor"]["fxgraph_cache_hit"])
"""


@pytest.fixture(scope="session")
def image(built: Row) -> str:
    """The row in a Docker engine, put there by `load`."""
    return built.kiln.run("load", "--target", ROW).strip()


def run(image: str, *command: str, options: tuple[str, ...] = (), status: int = 0) -> str:
    """Run a command in a container without network; what it printed, both streams together."""
    call = ["docker", "run", "--rm", "--network", "none", *options, image, *command]
    done = subprocess.run(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=600)
    assert done.returncode == status, done.stdout.decode()[-3000:]
    return done.stdout.decode()


READ_ONLY = ("--read-only", "--tmpfs", "/tmp:exec")


@pytest.mark.parametrize(
    ("user", "options"),
    [
        ("1000:0", ()),
        ("0:0", ("-e", "HOME=/")),
        ("4242:0", ("--env", "HOME=", *READ_ONLY)),
        ("4242:4242", READ_ONLY),
    ],
)
def test_any_uid_compiles(image: str, user: str, options: tuple[str, ...]) -> None:
    """No passwd row, no HOME, a read-only root with an executable /tmp: torch.compile works."""
    assert "compiled" in run(image, "python", "-c", COMPILE, options=("--user", user, *options))


@pytest.fixture
def volume() -> Iterator[str]:
    """A volume that containers share as /tmp."""
    name = f"torchkiln-{uuid.uuid4().hex}"
    subprocess.run(["docker", "volume", "create", name], check=True, stdout=subprocess.DEVNULL)
    yield name
    subprocess.run(["docker", "volume", "rm", name], check=True, stdout=subprocess.DEVNULL)


def test_two_uids_share_a_tmp(image: str, volume: str) -> None:
    """The second one neither fails on the first one's cache nor writes into it; the first one's hits."""
    shared = ("-v", f"{volume}:/tmp")
    run(image, "chmod", "1777", "/tmp", options=("--user", "0:0", *shared))
    assert "compiled 0" in run(image, "python", "-c", COMPILE, options=("--user", "4242:0", *shared))
    assert "compiled 0" in run(image, "python", "-c", COMPILE, options=("--user", "4343:4343", *shared))
    assert "compiled 1" in run(image, "python", "-c", COMPILE, options=("--user", "4242:0", *shared))


def test_surroundings(image: str) -> None:
    """User, folders, modes, locale, zone, and no variable of the building host."""
    script = """
set -e
test "$(id -u):$(id -g)" = 1000:0
test "$PWD" = /workspace
touch /workspace/mine ~/mine
stat -c %a /tmp /root /workspace | tr '\\n' ' ' | grep -qx '1777 700 1777 '
test "$(date +%Z)" = UTC
python -c 'import sys, os; assert sys.flags.utf8_mode or sys.getfilesystemencoding() == "utf-8"; print("é")'
test ! -s /etc/resolv.conf || ! grep -q search /etc/resolv.conf
env | cut -d= -f1 | sort | tr '\\n' ' '
"""
    names = run(image, "bash", "-c", script).split("é\n")[1].split()
    expected = {"HOME", "HOSTNAME", "LANG", "PATH", "PWD", "PYTHONNOUSERSITE", "PYTORCH_VERSION", "TZ", "VIRTUAL_ENV"}
    expected |= {"SHLVL", "_", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"}
    assert set(names) <= expected
    assert "USER" not in names
    assert not [name for name in names if name.startswith("NVIDIA")]


@pytest.mark.parametrize("shell", [("bash", "-lc"), ("su", "-", "torch", "-c")])
def test_login_shells_keep_the_environment(image: str, shell: tuple[str, ...]) -> None:
    """`bash -l` and `su -` find python and the cache folders."""
    script = "python -c 'import torch, os; print(torch.__version__, os.environ[\"TORCHINDUCTOR_CACHE_DIR\"])'"
    said = run(image, *shell, script, options=("--user", "0:0"))
    assert "2.13.0" in said
    assert "/tmp/torch" in said


def test_every_python_sees_torch(image: str) -> None:
    """The system's interpreter, and a venv made with --system-site-packages."""
    script = """
set -e
/usr/bin/python3 -c 'import torch; print("system", torch.__version__)'
python -m venv --system-site-packages /tmp/v
/tmp/v/bin/python -c 'import torch; print("venv", torch.__version__)'
/usr/bin/python3 -m venv --system-site-packages /tmp/w
/tmp/w/bin/python -c 'import torch; print("venv", torch.__version__)'
python -m venv /tmp/own && /tmp/own/bin/pip --version >/dev/null
"""
    assert run(image, "bash", "-c", script).count("2.13.0") == 3


def test_extension_builds_with_ninja(image: str) -> None:
    """`load_inline` needs a compiler, headers, ninja and a folder to write to."""
    script = """
from torch.utils.cpp_extension import load_inline
import torch
code = "torch::Tensor twice(torch::Tensor x) { return 2 * x; }"
module = load_inline("tk", code, functions=["twice"])
assert module.twice(torch.ones(3)).tolist() == [2, 2, 2]
print("built")
"""
    assert "built" in run(image, "python", "-c", script, options=("--user", "4242:0"))


def test_process_one_is_tini(image: str) -> None:
    """TERM ends the program at once, exit codes are kept, and orphans are reaped."""
    assert run(image, "bash", "-c", "exit 7", status=7) == ""
    run(image, "bash", "-c", "kill -9 $$", status=137)
    run(image, "no-such-command", status=127)
    script = """
import os, signal, subprocess, time
print(open("/proc/1/comm").read().strip())
subprocess.run(["sh", "-c", "sleep 0.1 &"])
for _ in range(100):
    time.sleep(0.2)
    states = [open(f"/proc/{p}/stat").read().split()[2] for p in os.listdir("/proc") if p.isdigit()]
    if len(states) == 2 and "Z" not in states:
        break
else:
    raise SystemExit(f"not reaped: {states}")
signal.signal(signal.SIGTERM, lambda *_: exit(9))
os.kill(1, signal.SIGTERM)
time.sleep(5)
"""
    assert run(image, "python", "-c", script, status=9).startswith("tini")


def test_trio_is_protected_and_everything_else_is_free(image: str, tmp_path: Path) -> None:
    """Another torch is refused by pip by name of the constraint; a small wheel installs and uninstalls cleanly."""
    from tests.toys import make_wheel  # noqa: PLC0415

    make_wheel(tmp_path, "torch", "2.0.0", {"torch/__init__.py": b""})
    make_wheel(tmp_path, "tiny", "1.0", {"tiny.py": b"x = 1\n"})
    make_wheel(tmp_path, "needy", "1.0", {"needy.py": b""}, requires=["torch==2.0.0"])
    tmp_path.chmod(0o755)
    links = ("--no-index", "--find-links", "/links")
    mount = ("-v", f"{tmp_path}:/links:ro")
    for wanted in ("torch==2.0.0", "needy"):
        said = run(image, "pip", "install", *links, wanted, options=mount, status=1)
        assert "torch==2.13.0" in said, said
    script = """
set -e
pip install -q --no-index --find-links /links tiny && python -c 'import tiny' && pip uninstall -qy tiny
! python -c 'import tiny' 2>/dev/null
pip check
pip uninstall -qy sympy && test ! -e /opt/venv/bin/isympy && test ! -e /opt/venv/share/man/man1/isympy.1
"""
    for user in ("1000:0", "0:0", "4242:0"):
        run(image, "bash", "-c", script, options=("--user", user, *mount))


def test_build_isolation_sees_no_other_torch(image: str, tmp_path: Path) -> None:
    """A source package that needs torch to be built is not built against another release of it.

    Without isolation it is built against the image's own: pip is not stopped by the constraint that holds the other.
    """
    from tests.toys import make_wheel  # noqa: PLC0415

    project = '[build-system]\nrequires = ["setuptools", "torch"]\nbuild-backend = "setuptools.build_meta"\n'
    project += '[project]\nname = "wants"\nversion = "1"\n'
    (tmp_path / "wants").mkdir()
    (tmp_path / "wants" / "pyproject.toml").write_text(project)
    make_wheel(tmp_path, "torch", "2.0.0", {"torch/__init__.py": b""})
    make_wheel(tmp_path, "setuptools", "99", {"setuptools/__init__.py": b""})  # never reached
    tmp_path.chmod(0o755)
    script = "cp -r /links/wants /tmp/wants && pip install --no-index --find-links /links /tmp/wants"
    mount = ("-v", f"{tmp_path}:/links:ro")
    said = run(image, "bash", "-c", script, options=mount, status=1)
    assert "torch==2.13.0" in said, said
    (tmp_path / "wants" / "setup.py").write_text("import torch, setuptools\nsetuptools.setup(py_modules=[])\n")
    script = "cp -r /links/wants /tmp/wants && pip install --no-build-isolation --no-index /tmp/wants"
    said = run(image, "bash", "-c", script, options=mount)
    assert "Successfully installed wants-1" in said, said


def test_doctor_for_users(image: str) -> None:
    """`torchkiln-doctor` answers as any user."""
    said = run(image, "torchkiln-doctor", options=("--user", "4242:4242"))
    assert "verdict: pass" in said


def test_image_in_the_engine_can_be_held_against_its_row(image: str, built: Row) -> None:
    """`docker-daemon:NAME` is read back layer by layer, and run where it is."""
    asked = ("--image", f"docker-daemon:{image}", "--engine", "docker", "--checks", "static.*", "--checks", "python.*")
    report = json.loads(built.kiln.run("validate", "--target", ROW, *asked, "--json", status=21))
    ran = {check["id"]: check["status"] for check in report["checks"] if check["status"] != "not-run"}
    assert {"static.versions", "static.env", "python.version", "suite.run"} <= set(ran)
    assert set(ran.values()) == {"pass"}
    assert report["engine"] == "docker"


def test_docker_engine_passes_the_built_row(built: Row) -> None:
    """Every required check answers there, also the one that needs a container of an unknown user."""
    report = json.loads(built.kiln.run("validate", "--target", ROW, "--engine", "docker", "--json"))
    required = {check["id"]: check["reason"] for check in report["checks"] if check["required"]}
    assert (report["verdict"], report["engine"]) == ("pass", "docker")
    assert required["compile.random_uid"].startswith("CPU: 1042:0, compiled")


@pytest.fixture(scope="session")
def derived(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image that a user made from the row with `docker build`."""
    folder = tmp_path_factory.mktemp("derived")
    (folder / "Dockerfile").write_text(f"FROM {image}\nRUN touch /workspace/mine\n")
    name = f"torchkiln/test-derived:{uuid.uuid4().hex}"
    classic = {**os.environ, "DOCKER_BUILDKIT": "0"}  # the client's buildx plugin may be missing
    call = ["docker", "build", "--quiet", "--network", "none", "--tag", name, str(folder)]
    subprocess.run(call, check=True, env=classic, stdout=subprocess.DEVNULL)
    yield name
    subprocess.run(["docker", "image", "rm", "--force", name], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("engine", ["sandbox", "docker"])
def test_derived_image_can_be_held_against_the_row(derived: str, built: Row, engine: str) -> None:
    """Its layers are plain tars, as the engine saves them; it is run without leaving another image there."""
    list_all = ["docker", "images", "--all", "--no-trunc", "--quiet"]
    before = set(subprocess.run(list_all, check=True, stdout=subprocess.PIPE).stdout.split())
    asked = ("--image", f"docker-daemon:{derived}", "--checks", "static.versions", "--checks", "torch.import")
    said = built.kiln.run("validate", "--target", ROW, "--engine", engine, *asked, "--json", status=21)
    ran = {check["id"]: check["status"] for check in json.loads(said)["checks"]}
    assert {name: ran[name] for name in ("static.versions", "torch.import", "suite.run")} == dict.fromkeys(
        ("static.versions", "torch.import", "suite.run"), "pass"
    )
    assert set(subprocess.run(list_all, check=True, stdout=subprocess.PIPE).stdout.split()) == before


@pytest.mark.parametrize("engine", ["sandbox", "docker"])
def test_shell_on_any_engine(built: Row, engine: str) -> None:
    """Exit status and output are the command's; nothing of what it writes stays."""
    said = built.kiln.run(
        "shell", "--target", ROW, "--engine", engine, "--command", "sh -c 'id -u; touch /workspace/x'"
    )
    assert said.strip().splitlines()[-1] == "1000"
    built.kiln.run("shell", "--target", ROW, "--engine", engine, "--command", "test -e /workspace/x", status=1)


@pytest.mark.registry
def test_pulled_from_a_registry_it_runs(built: Row) -> None:
    """Skopeo pushes the layout, the engine pulls it by digest, and every puller's single-member decoder reads it."""
    name = f"{os.environ['TORCHKILN_TEST_REGISTRY']}/torchkiln/test"
    digest = built.entry["digest"]
    push = ["skopeo", "copy", "-q", "--dest-tls-verify=false", built.entry["ref"], f"docker://{name}:{ROW}"]
    subprocess.run(push, check=True)
    subprocess.run(["docker", "pull", "-q", f"{name}@{digest}"], check=True, stdout=subprocess.DEVNULL)
    assert "2.13.0" in run(f"{name}@{digest}", "python", "-c", "import torch; print(torch.__version__)")
