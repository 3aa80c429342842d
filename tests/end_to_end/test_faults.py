"""Bad input and bad luck: a clear error, nothing left broken, and the next run completes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kiln import ROW, Kiln

if TYPE_CHECKING:
    from tests.kiln import Row

pytestmark = [pytest.mark.network, pytest.mark.sandbox]
STAGES = ("fetch", "wheels to layers", "bytecode", "validate")


def wait_for(process: subprocess.Popen[bytes], stage: str) -> None:
    """Read progress until a stage begins, and give it a moment to be in the middle."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.decode().strip() == f"{stage} …":
            time.sleep(0.4)
            return
    raise AssertionError(f"{stage} never began")


def left_behind(home: Path) -> list[str]:
    """Processes that still have something of this cache folder in their command line."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                words = (process / "cmdline").read_bytes()
            except OSError:
                continue
            found += [words.decode(errors="replace")] if str(home).encode() in words else []
    return found


def eventually_none_left(home: Path) -> bool:
    """Whether all of them are gone soon."""
    for _ in range(100):
        if not left_behind(home):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("stage", STAGES)
def test_killed_in_any_stage_the_next_run_completes(built: Row, warm: Kiln, stage: str) -> None:
    """SIGKILL at any instant; no process stays, and the digest is the same as ever."""
    with warm.start("build", "--target", ROW, "--engine", "sandbox") as process:
        wait_for(process, stage)
        process.kill()
        process.communicate()
    assert eventually_none_left(warm.home)
    (entry,) = json.loads(warm.run("build", "--target", ROW, "--no-validate", "--json"))
    assert entry["digest"] == built.entry["digest"]
    assert "every digest holds" in warm.run("verify", "--target", ROW)


@pytest.mark.parametrize("stage", ["wheels to layers", "validate"])
def test_interrupted_build_ends_at_once_and_says_so(warm: Kiln, stage: str) -> None:
    """Ctrl-C: exit 130, no process and no partial blob stays."""
    with warm.start("build", "--target", ROW, "--engine", "sandbox") as process:
        wait_for(process, stage)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err.decode()
    assert "Traceback" not in err.decode()
    assert eventually_none_left(warm.home)
    assert list((warm.home / "store/blobs/sha256").glob(".partial-*")) == []


def test_base_killed_while_it_is_made(tmp_path: Path) -> None:
    """Mmdebstrap ends with the build that started it, and leaves no mount."""
    kiln = Kiln(tmp_path / "home")
    with kiln.start("base", "--target", ROW) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"extracting archives" in line or b"installing essential" in line:
                break
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert eventually_none_left(kiln.home)
    assert str(kiln.home) not in Path("/proc/mounts").read_text()


def test_two_builds_at_once(built: Row, warm: Kiln) -> None:
    """They share the cache: both succeed with the same digest."""
    both = [warm.start("build", "--target", ROW, "--no-validate", "--json") for _ in range(2)]
    for process in both:
        with process:
            out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err.decode()[-2000:]
        assert json.loads(out)[0]["digest"] == built.entry["digest"]


def test_full_disk_is_an_error_that_says_so(full_disk: Path) -> None:
    """Exit 14, with the folder and what to do; no file under its final name."""
    said = Kiln(full_disk / "home").refused("build", "--target", ROW, "--no-validate", status=14)
    assert "disk" in said or "space" in said.lower()
    assert str(full_disk) in said
    assert [path for path in full_disk.rglob("*.whl") if path.stat().st_size > 30 << 20] == []


def test_home_that_cannot_be_written() -> None:
    """A read-only cache folder is named before any work."""
    assert "TORCHKILN_HOME" in Kiln(Path("/proc/torchkiln")).refused("build", "--target", ROW, status=14)


def test_no_network_is_said(warm: Kiln) -> None:
    """Nothing answers: the wheels that are missing, and what to check; the base, asked for beside them, is at hand."""
    offline = {
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "ALL_PROXY": "http://127.0.0.1:9",
    }
    said = warm.refused("build", "--target", "torch25-cu124", "--no-validate", status=7, env=offline)
    assert "network" in said or "proxies" in said


@pytest.mark.parametrize(("wanted", "nearest"), [("torch25-cu125", "torch25-cu124"), ("torch213-cpus", "torch213-cpu")])
def test_unknown_target_names_the_nearest(tmp_path: Path, wanted: str, nearest: str) -> None:
    """Exit 4."""
    assert nearest in Kiln(tmp_path / "home").refused("build", "--target", wanted, status=4)


def test_damaged_wheel_in_the_cache_is_thrown_out(built: Row, warm: Kiln) -> None:
    """A byte that changed on disk after the download: wheel named, no layer made, mended by the next run."""
    (wheel,) = (warm.home / "wheels").rglob("sympy-*.whl")
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2] ^= 0xFF
    wheel.unlink()
    wheel.write_bytes(data)
    said = warm.refused("build", "--target", ROW, "--no-validate", status=8)
    assert "sympy" in said
    assert "changed on this disk" in said
    (entry,) = json.loads(warm.run("build", "--target", ROW, "--no-validate", "--json"))
    assert entry["digest"] == built.entry["digest"]


def test_unknown_check_names_the_nearest(tmp_path: Path) -> None:
    """Before the image is even looked for."""
    asked = ("validate", "--target", "torch213-cpu", "--checks", "toch.import")
    assert "--checks torch.import" in Kiln(tmp_path / "home").refused(*asked, status=2)


def test_selection_is_no_verdict_and_says_why(built: Row) -> None:
    """Exit 21 with what would give one: no other host, but the rest of the checks."""
    asked = ("validate", "--target", ROW, "--engine", "sandbox", "--checks", "static.*")
    with built.kiln.start(*asked) as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == 21
    assert "required checks were not selected, so this is no verdict on the row" in out.decode()
    assert "leave out --checks" in err.decode()


def test_damaged_layer_is_named_removed_and_made_anew(built: Row, warm: Kiln) -> None:
    """A byte that changed on disk: the layer and the way out are told, and the way out works."""
    warm.run("build", "--target", ROW, "--no-validate")
    layer = min(built.entry["layers"], key=lambda one: int(one["size"]))
    path = warm.home / "store/blobs/sha256" / layer["digest"].removeprefix("sha256:")
    data = bytearray(path.read_bytes())
    data[-6] ^= 1  # CRC of gzip
    path.unlink()
    path.write_bytes(data)
    said = warm.refused("shell", "--target", ROW, "--command", "true", status=15)
    assert layer["digest"] in said
    assert f"./inv verify --target {ROW}" in said
    with warm.start("verify", "--target", ROW) as process:
        out, err = process.communicate()
    assert process.returncode == 16
    assert layer["digest"] in out.decode()
    assert f"./inv build --target {ROW}" in err.decode()
    (entry,) = json.loads(warm.run("build", "--target", ROW, "--no-validate", "--json"))
    assert entry["digest"] == built.entry["digest"]
    assert "every digest holds" in warm.run("verify", "--target", ROW)


def test_row_that_is_not_built(tmp_path: Path) -> None:
    """`verify` says the same as other tasks."""
    kiln = Kiln(tmp_path / "home")
    said = {task: kiln.refused(task, "--target", ROW, status=12) for task in ("verify", "load", "shell", "validate")}
    assert f"./inv build --target {ROW}" in said["verify"]
    assert set(said.values()) == {said["verify"]}


def test_image_of_another_tool_is_verified_as_it_is(built: Row, tmp_path: Path) -> None:
    """A manifest that is not written as ours is no mismatch; what lies is told, left there, and not for us to build."""
    folder = tmp_path / "theirs"
    subprocess.run(["cp", "-al", str(built.kiln.home / "store"), str(folder)], check=True)
    blobs = folder / "blobs" / "sha256"
    index = json.loads((folder / "index.json").read_bytes())
    (entry,) = [one for one in index["manifests"] if ROW in one["annotations"].values()]
    manifest = json.dumps(json.loads((blobs / entry["digest"].removeprefix("sha256:")).read_bytes()), indent=4).encode()
    digest = hashlib.sha256(manifest).hexdigest()
    (blobs / digest).write_bytes(manifest)
    index["manifests"] = [{**entry, "digest": f"sha256:{digest}", "size": len(manifest)}]
    (folder / "index.json").unlink()  # a hard link
    (folder / "index.json").write_text(json.dumps(index))
    kiln = Kiln(tmp_path / "home")
    assert "every digest holds" in kiln.run("verify", "--image", f"oci:{folder}:{ROW}")
    (blobs / digest).write_bytes(manifest + b" ")
    with kiln.start("verify", "--image", f"oci:{folder}:{ROW}") as process:
        out, err = process.communicate()
    assert process.returncode == 16
    assert digest in out.decode()
    assert "./inv build" not in err.decode()
    assert (blobs / digest).exists()


def test_names_for_an_engine(tmp_path: Path) -> None:
    """A tag that no engine takes, or one for several rows, is refused before anything is read."""
    kiln = Kiln(tmp_path / "home")
    assert "small letters" in kiln.refused("load", "--target", ROW, "--tag", "Not A Name", status=2)
    assert "one name" in kiln.refused("load", "--target", "torch2*", "--tag", "mine", status=2)
