"""The environment of an image: a venv that users can change but whose torch stays, and caches that any uid can use."""

from __future__ import annotations

import configparser
import os
import stat
import sys
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.test_plan import TARGET
from torchkiln import plan, rootfs, specs
from torchkiln.engines import Command
from torchkiln.engines.sandbox import Sandbox
from torchkiln.layers import environment, startup
from torchkiln.layers.archive import Entry, write_layer
from torchkiln.layers.install import SITE
from torchkiln.matrix.target import Accelerator
from torchkiln.oci.image import Config, Image
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.layers.conftest import Made

SPEC = specs.EnvironmentSpec(python="3.11", protected=("torch==2.5.1", "torchvision==0.20.1"))
CONTENT = {6: "sha256:f7cc5f9af321cbaaed427d7a1bbd78961c04c189fc8f2df7d08d1a71bffd4eb2"}
"""Digest of the layer for SPEC, by format."""
ME = os.geteuid()


def files(spec: specs.EnvironmentSpec = SPEC) -> dict[str, tuple[Entry, str]]:
    """Entries and texts by path."""
    found = environment.entries(spec)
    return {entry.path: (entry, content.decode() if isinstance(content, bytes) else "") for entry, content in found}


def test_other_content_needs_another_format(tmp_path: Path) -> None:
    """A layer key says the format, not the content: whoever changes a file here raises EnvironmentSpec.FORMAT."""
    made = environment.build(Store(tmp_path), SPEC)
    assert {specs.EnvironmentSpec.FORMAT: made.diff_id} == CONTENT


def test_the_venv_is_one_for_every_minor() -> None:
    """Real files in lib/python; the minor is a link, and group 0 may write everywhere."""
    found = files()
    links = {path: entry.target for path, (entry, _) in found.items() if entry.kind == "symlink"}
    assert links == {
        "opt/venv/bin/python": "/usr/bin/python3.11",
        "opt/venv/bin/python3": "python",
        "opt/venv/bin/python3.11": "python",
        "opt/venv/lib/python3.11": "python",
        "opt/venv/lib64": "lib",
    }
    inside = [entry for path, (entry, _) in found.items() if path.startswith("opt/venv") and entry.kind != "symlink"]
    assert {entry.mode for entry in inside if entry.kind == "directory"} == {0o775}
    assert {entry.mode for entry in inside if entry.kind == "file"} == {0o664}
    assert "home = /usr/bin\n" in found["opt/venv/pyvenv.cfg"][1]


def test_an_interpreter_elsewhere_is_led_to() -> None:
    """A base may have its Python in another prefix, whose own site-packages then shows the venv."""
    found = files(replace(SPEC, interpreter="/usr/local/bin/python3"))
    assert found["opt/venv/bin/python"][0].target == "/usr/local/bin/python3.11"
    assert found["opt/venv/pyvenv.cfg"][1].startswith("home = /usr/local/bin\n")
    assert "usr/local/lib/python3.11/site-packages/zz-opt-venv.pth" in found
    assert not [path for path in found if "dist-packages" in path]


def test_the_trio_is_protected_for_pip_and_uv() -> None:
    """Constraints for installs and for isolated builds, in files that bind this venv and uv alone."""
    found = files()
    pip = configparser.ConfigParser()
    pip.read_string(found["opt/venv/pip.conf"][1])
    assert pip["global"]["constraint"] == pip["global"]["build-constraint"] == "/opt/venv/constraints.txt"
    lines = [line for line in found["opt/venv/constraints.txt"][1].splitlines() if not line.startswith("#")]
    assert lines == list(SPEC.protected)
    uv = tomllib.loads(found["etc/uv/uv.toml"][1])
    assert uv == {key: list(SPEC.protected) for key in ("constraint-dependencies", "build-constraint-dependencies")}


def test_login_shells_fall_back_to_the_images_variables() -> None:
    """What plan.environment() sets, /etc/profile.d sets again, but for HOME, which login sets itself."""
    target = replace(TARGET, accelerator=Accelerator(id="cpu", kind="cpu"))
    expected = {name: value for name, value in plan.environment(target).items() if name not in ("HOME", "PATH")}
    profile = files()["etc/profile.d/torchkiln.sh"][1]
    stated = [line for line in profile.splitlines() if line.startswith("export ") and "=" in line]
    assert sorted(stated) == sorted(f'export {name}="${{{name}:-{value}}}"' for name, value in expected.items())


def test_the_systems_python_sees_the_venv() -> None:
    """One .pth names site-packages, and runs the same start-up."""
    text = files()["usr/lib/python3/dist-packages/zz-opt-venv.pth"][1]
    assert text == "/opt/venv/lib/python3.11/site-packages\nimport torchkiln_startup\n"


# Cache folders.


def pointed(
    root: Path, uid: int = ME, *, shipped: str = "/nowhere", given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables after start-up, from the image's defaults or the given ones."""
    environ = {name: f"{root}/{folder}" for name, folder in startup.FOLDERS.items()} | dict(given or {})
    startup.point(environ, uid, str(root), shipped)
    return environ


def below(folder: Path | str) -> dict[str, str]:
    """All variables pointing below a folder."""
    return {name: f"{folder}/{last}" for name, last in startup.FOLDERS.items()}


def strangers(path: Path) -> None:
    """Give a folder to somebody who is neither we nor root."""
    if ME == 0:
        os.chown(path, 4242, 4242)


def stranger() -> int:
    """A uid to which our own folders are a stranger's; root's would be shared on purpose."""
    return ME if ME == 0 else ME + 1


def test_the_first_user_gets_the_default_folder(tmp_path: Path) -> None:
    """It is made for this user alone; unset variables get it, too."""
    root = tmp_path / "torch"
    assert pointed(root) == below(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert pointed(root) == below(root)
    assert pointed(root, given={"TRITON_CACHE_DIR": ""}) == below(root)


def test_another_user_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    """A folder of somebody else is left alone, and inherited variables follow a change of user."""
    root = tmp_path / "torch"
    root.mkdir(mode=0o755)
    strangers(root)
    uid = stranger()
    if ME == 0:
        assert pointed(root, uid) == below(f"{root}-{uid}")
        assert stat.S_IMODE(Path(f"{root}-{uid}").stat().st_mode) == 0o700
        assert pointed(root, uid, given=below(f"{root}-777")) == below(f"{root}-{uid}")
    else:
        assert pointed(root, uid)["TRITON_CACHE_DIR"].startswith(f"{root}-{uid}")


@pytest.mark.parametrize("trap", ["link", "world", "file", "below"])
def test_a_folder_that_strangers_control_is_not_used(tmp_path: Path, trap: str) -> None:
    """Links, files, folders open to everybody, before us or below us: compiled code is executed from there."""
    root, elsewhere = tmp_path / "torch", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if trap == "link":
        root.symlink_to(elsewhere)
    elif trap == "file":
        root.write_text("")
    else:
        root.mkdir(mode=0o700)
        target = root if trap == "world" else root / "triton"
        target.mkdir(exist_ok=True)
        target.chmod(0o777)
    assert pointed(root) == below(f"{root}-{ME}")
    assert list(elsewhere.iterdir()) == []


def test_with_every_name_taken_a_new_one_is_drawn(tmp_path: Path) -> None:
    """Somebody who squats on both names does not get our code."""
    root = tmp_path / "torch"
    for name in (root, Path(f"{root}-{ME}")):
        name.symlink_to(tmp_path)
    made = {str(Path(value).parent) for value in pointed(root).values()}
    (folder,) = made
    assert folder.startswith(f"{root}-{ME}-")
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700


def test_users_own_values_stay(tmp_path: Path) -> None:
    """What does not have the image's default is somebody's decision, as is what was chosen for this user before."""
    root = tmp_path / "torch"
    assert pointed(root, given={"TRITON_CACHE_DIR": "/data/triton"}) == below(root) | {
        "TRITON_CACHE_DIR": "/data/triton"
    }
    chosen = below(f"{root}-{ME}")
    assert pointed(root, given=chosen) == chosen
    every = dict.fromkeys(startup.FOLDERS, "/data")
    assert pointed(tmp_path / "none", given=every) == every
    assert not (tmp_path / "none").exists()


def test_a_shipped_cache_is_copied_once(tmp_path: Path) -> None:
    """Whole, and never over what the user has there already."""
    root, shipped = tmp_path / "torch", tmp_path / "shipped"
    (shipped / "inductor" / "ab").mkdir(parents=True)
    (shipped / "inductor" / "ab" / "graph").write_text("warm")
    pointed(root, shipped=str(shipped))
    copied = root / "inductor" / "ab" / "graph"
    assert copied.read_text() == "warm"
    copied.write_text("mine")
    pointed(root, shipped=str(shipped))
    assert copied.read_text() == "mine"
    assert sorted(path.name for path in root.iterdir()) == ["inductor"]


def test_no_place_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python starts where nothing can be written."""
    monkeypatch.setattr(startup, "ROOT", str(tmp_path / "missing" / "torch"))
    monkeypatch.setattr(startup, "point", partial(startup.point, root=str(tmp_path / "missing" / "torch")))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = dict(os.environ)
    startup.start()
    assert dict(os.environ) == before


# In a real userland.


@pytest.fixture(scope="module")
def image(bookworm: Made) -> Image:
    """Base, environment, and a module that stands for torch."""
    layer = environment.build(bookworm.store, SPEC)
    toy = [(Entry(path=f"{SITE}/torch.py", kind="file", mode=0o664), b"here = 42\n")]
    stand_in = write_layer(bookworm.store, "torch", toy)
    config = Config(env=plan.environment(TARGET), user="1000:0", working_dir="/workspace")
    return Image(config=config, layers=(bookworm.result.layers[0], stand_in, layer))


def run(bookworm: Made, image: Image, script: str, **command: object) -> list[str]:
    """Lines that a shell in the image prints."""
    engine = Sandbox(partial(rootfs.tree, bookworm.home, bookworm.store))
    if {"user", "root"} & set(command) and "users" in engine.restrictions():
        pytest.skip("other users need root")
    outcome = engine.run(image, Command(argv=("sh", "-c", f"set -e\n{script}"), **command))  # type: ignore[arg-type]
    assert outcome.status == 0, outcome
    return outcome.stdout.decode().splitlines()


WHERE = 'python -c "import os; print(os.environ[\\"TRITON_CACHE_DIR\\"])"'


@pytest.mark.network
@pytest.mark.sandbox
def test_every_python_of_the_image_sees_torch(bookworm: Made, image: Image) -> None:
    """The venv's, the system's, and that of a venv with system packages; not that of a plain venv of the user."""
    script = """
    python -c "import sys, torch; print(sys.prefix, torch.here)"
    /usr/bin/python3 -c "import sys, torch; print(sys.prefix, torch.here)"
    /usr/bin/python3 -m venv --without-pip --system-site-packages /tmp/a
    /tmp/a/bin/python -c "import sys, torch; print(sys.prefix, torch.here)"
    python -m venv --without-pip /tmp/b
    /tmp/b/bin/python -c "import torch" 2>&1 | tail -n 1
    PATH=/usr/bin:/bin; . /opt/venv/bin/activate; command -v python; deactivate; command -v python || echo gone
    """
    assert run(bookworm, image, script) == [
        "/opt/venv 42",
        "/usr 42",
        "/tmp/a 42",
        "ModuleNotFoundError: No module named 'torch'",
        "/opt/venv/bin/python",
        "gone",
    ]


@pytest.mark.network
@pytest.mark.sandbox
def test_login_shells_keep_the_environment(bookworm: Made, image: Image) -> None:
    """`bash -l` and `su -` find python and the caches; what the user set stays."""
    ask = 'command -v python; echo "$TORCHINDUCTOR_CACHE_DIR $TRITON_CACHE_DIR $LANG $HOME"'
    assert run(bookworm, image, f"bash -lc '{ask}'", env={"TRITON_CACHE_DIR": "/mine"}) == [
        "/opt/venv/bin/python",
        "/tmp/torch/inductor /mine C.UTF-8 /home/torch",
    ]
    assert run(bookworm, image, f"su - torch -c '{ask}'", user="0:0", env={"TRITON_CACHE_DIR": "/mine"}) == [
        "/opt/venv/bin/python",
        "/tmp/torch/inductor /tmp/torch/triton C.UTF-8 /home/torch",
    ]


@pytest.mark.network
@pytest.mark.sandbox
@pytest.mark.parametrize("user", ["1000:0", "0:0", "4242:0", "4242:4242"])
def test_any_user_has_cache_folders(bookworm: Made, image: Image, user: str) -> None:
    """No passwd row, no HOME, a read-only root with a tmpfs: the default folder is this user's own."""
    given = {"user": user, "unset": ("HOME",), "read_only": True, "tmpfs": {"/tmp": "exec,size=64m"}}
    assert run(bookworm, image, f"{WHERE}; stat -c '%u %a' /tmp/torch", **given) == [
        "/tmp/torch/triton",
        f"{user.partition(':')[0]} 700",
    ]


@pytest.mark.network
@pytest.mark.sandbox
def test_two_users_share_tmp_without_clash(bookworm: Made, image: Image) -> None:
    """The second one, and root, get folders of their own; nobody writes into another's."""
    script = f"""
    setpriv --reuid 1001 --regid 0 --clear-groups {WHERE}
    setpriv --reuid 4242 --regid 4242 --clear-groups {WHERE}
    {WHERE}
    stat -c '%n %u %a' /tmp/torch*
    """
    assert run(bookworm, image, script, user="0:0") == [
        "/tmp/torch/triton",
        "/tmp/torch-4242/triton",
        "/tmp/torch-0/triton",
        "/tmp/torch 1001 700",
        "/tmp/torch-0 0 700",
        "/tmp/torch-4242 4242 700",
    ]


@pytest.mark.network
@pytest.mark.sandbox
def test_folders_for_everybody(bookworm: Made, image: Image) -> None:
    """Any uid writes in /workspace; of group 0, in /opt/venv and the home as well."""
    run(bookworm, image, "touch /workspace/a", user="4242:4242")
    run(bookworm, image, "touch /workspace/a /opt/venv/lib/python3.11/site-packages/b ~/c", user="4242:0")
    assert run(bookworm, image, "id -un; echo $HOME; pwd; date +%Z; locale charmap", user="1000:0") == [
        "torch",
        "/home/torch",
        "/workspace",
        "UTC",
        "UTF-8",
    ]


@pytest.mark.parametrize("variable", ["LOGNAME", "USER", "LNAME", "USERNAME"])
def test_user_with_a_name_keeps_it(variable: str) -> None:
    """Whatever getpass reads wins, and so does a passwd row."""
    environ = {variable: "somebody"}
    startup.name(environ, 4_242_424)
    assert environ == {variable: "somebody"}
    named: dict[str, str] = {}
    startup.name(named, 0)
    assert named == {}


def test_uid_without_a_passwd_row_gets_a_name_of_its_own() -> None:
    """Release 2.8 asks for the user's name while Inductor is imported; two such uids never share one."""
    environ: dict[str, str] = {"LOGNAME": ""}
    startup.name(environ, 4_242_424)
    assert environ == {"LOGNAME": "uid_4242424"}


@pytest.mark.parametrize(
    ("arguments", "stated", "expected"),
    [
        (["install", "--no-build-isolation", "x"], {}, " "),
        (["install", "x"], {"PIP_NO_BUILD_ISOLATION": "1"}, " "),
        (["install", "x"], {}, "unset"),
        (["install", "--no-build-isolation", "x"], {"PIP_BUILD_CONSTRAINT": "mine"}, "mine"),
    ],
)
def test_building_without_isolation_is_not_refused(arguments: list[str], stated: dict[str, str], expected: str) -> None:
    """Pip's own file holds isolated builds to the image's torch; without isolation that is what they see anyway."""
    environ = dict(stated)
    startup.unconstrain(environ, ["/opt/venv/bin/python", "-m", "pip", *arguments])
    assert environ.get("PIP_BUILD_CONSTRAINT", "unset") == expected
