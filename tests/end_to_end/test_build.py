"""`./inv build`: the contract of its output, the same digest everywhere, and nothing done twice."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kiln import FIND_LINKS, ROOT, ROW, SOMEBODY, Kiln, another_locale, another_python, another_user

if TYPE_CHECKING:
    from tests.kiln import Row

pytestmark = [pytest.mark.network, pytest.mark.sandbox]


def test_cpu_row_passes(built: Row) -> None:
    """Its verdict is `pass`: every required check ran and holds, without a GPU."""
    report = built.entry["validation"]
    wrong = [check for check in report["checks"] if check["status"] not in {"pass", "not-run"}]
    assert wrong == []
    assert report["verdict"] == "pass"
    assert report["digest"] == built.entry["digest"]


def test_json_is_the_contract(built: Row) -> None:
    """Programs rely on these fields."""
    fields = {
        "target",
        "digest",
        "ref",
        "layers",
        "compressed_size",
        "unpacked_size",
        "seconds",
        "stages",
        "validation",
    }
    assert set(built.entry) == fields
    assert all(set(layer) == {"key", "digest", "diff_id", "size"} for layer in built.entry["layers"])
    report = built.entry["validation"]
    assert {"schema", "target", "digest", "engine", "host", "checks", "summary", "verdict"} <= set(report)
    assert all({"id", "title", "status", "reason", "seconds", "data"} <= set(check) for check in report["checks"])


def test_building_again_makes_nothing(built: Row) -> None:
    """Without the network, and without touching a blob: all that is written is what was there."""
    blobs = built.kiln.home / "store" / "blobs" / "sha256"
    before = {path.name: path.stat().st_mtime_ns for path in blobs.iterdir()}
    offline = {
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "ALL_PROXY": "http://127.0.0.1:9",
    }
    (entry,) = json.loads(built.kiln.run("build", "--target", ROW, "--no-validate", "--json", env=offline))
    layers = {layer["digest"].removeprefix("sha256:") for layer in entry["layers"]}
    after = {path.name: path.stat().st_mtime_ns for path in blobs.iterdir()}
    assert entry["digest"] == built.entry["digest"]
    assert {name: after[name] for name in layers} == {name: before[name] for name in layers}
    assert entry["validation"]["verdict"] != "pass"


def test_rebuild_from_nothing_has_the_same_digest(built: Row, tmp_path: Path) -> None:
    """Another folder, umask, zone, locale, hash seed, patch release of Python, number of cores; the base anew, too."""
    python, packages = another_python()
    other = Kiln(tmp_path / "another home", python=python)
    place = {"TZ": "Pacific/Kiritimati", **another_locale(tmp_path)}
    env = {"PYTHONHASHSEED": "7", **place, **packages}
    encoding = (python, "-c", "import sys; print(sys.getfilesystemencoding())")
    assert subprocess.check_output(encoding, env={**os.environ, **env}) != b"utf-8\n"  # it does apply
    alone = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
    command = ("build", "--target", ROW, "--no-validate", "--json")
    with other.start(*command, env=env, before=alone, umask=0o077) as process:
        out, err = process.communicate(timeout=1500)
    assert process.returncode == 0, err.decode()[-4000:]
    (entry,) = json.loads(out)
    assert [layer["digest"] for layer in entry["layers"]] == [layer["digest"] for layer in built.entry["layers"]]
    assert entry["digest"] == built.entry["digest"]


def test_made_anew_and_checked_it_is_the_same(built: Row, warm: Kiln) -> None:
    """Known layers take a short cut; --verify inflates and hashes everything, as another user too: the same digest."""
    folders = [warm.home, *(path for path in warm.home.rglob("*") if path.is_dir())]
    user = another_user()
    for folder in folders if user else ():
        os.chown(folder, SOMEBODY, SOMEBODY)
    command = ("build", "--target", ROW, "--no-validate", "--verify", "--json")
    with warm.start(*command, env={"HOME": str(warm.home)}, before=user) as process:
        out, err = process.communicate(timeout=1500)
    assert process.returncode == 0, err.decode()[-4000:]
    (entry,) = json.loads(out)
    assert entry["digest"] == built.entry["digest"]
    assert "verify" in entry["stages"]
    made = warm.home / "store" / "blobs" / "sha256" / entry["layers"][-1]["digest"].removeprefix("sha256:")
    assert made.stat().st_uid == (SOMEBODY if user else os.geteuid())


def test_plan_names_the_layers_that_build_makes(built: Row) -> None:
    """`plan` and `build` agree, key by key, but for a base that the archive has moved on from: it has its own."""
    (planned,) = json.loads(built.kiln.run("plan", "--target", ROW, "--json"))
    keys = [[layer["key"] for layer in one["layers"]] for one in (planned, built.entry)]
    assert [key.partition("-")[0] for key in keys[0]] == [key.partition("-")[0] for key in keys[1]]
    assert [key for key in keys[0] if not key.startswith("base-")] == [
        key for key in keys[1] if not key.startswith("base-")
    ]
    assert planned["config"]["user"] == "1000:0"
    sizes = [(layer["size"], layer["size_is"]) for layer in planned["layers"]]
    assert sizes == [(layer["size"], "exact") for layer in built.entry["layers"]]


def test_a_plan_comes_close_before_anything_is_made(built: Row, tmp_path: Path) -> None:
    """Wheels' layers within 5 % each and 1 % in all; what else the image holds is called unknown."""
    (planned,) = json.loads(Kiln(tmp_path / "empty").run("plan", "--target", ROW, "--json"))
    pairs = [
        (layer, made["size"])
        for layer, made in zip(planned["layers"], built.entry["layers"], strict=True)
        if layer["key"].startswith("wheel-")
    ]
    assert {layer["size_is"] for layer, _ in pairs} == {"estimate"}
    assert [layer["title"] for layer, made in pairs if abs(layer["size"] - made) > 0.05 * made] == []
    total = sum(made for _, made in pairs)
    assert abs(sum(layer["size"] for layer, _ in pairs) - total) < 0.01 * total
    others = [layer for layer in planned["layers"] if not layer["key"].startswith("wheel-")]
    assert {layer["size_is"] for layer in others} == {"unknown"}


def test_verify_finds_every_digest_right_and_a_changed_byte_wrong(built: Row, warm: Kiln) -> None:
    """Exit 16, and the mismatch on stdout, when a blob lies."""
    assert "every digest holds" in built.kiln.run("verify", "--target", ROW)
    warm.run("build", "--target", ROW, "--no-validate")
    layer = built.entry["layers"][-1]
    blob = warm.home / "store" / "blobs" / "sha256" / layer["digest"].removeprefix("sha256:")
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    assert layer["digest"] in warm.run("verify", "--target", ROW, status=16)


def test_other_tools_read_the_store(built: Row, tmp_path: Path) -> None:
    """Skopeo inspects and copies the layout."""
    reference = built.entry["ref"]
    inspected = json.loads(subprocess.check_output(["skopeo", "inspect", reference]))
    assert inspected["Digest"] == built.entry["digest"]
    assert inspected["Labels"]["org.torchkiln.target"] == ROW
    subprocess.run(["skopeo", "copy", "-q", reference, f"oci:{tmp_path}/copy:x"], check=True)
    copied = json.loads((tmp_path / "copy" / "index.json").read_bytes())["manifests"][0]
    assert copied["digest"] == built.entry["digest"]


def test_any_image_can_be_held_against_a_row(built: Row, tmp_path: Path) -> None:
    """A copy elsewhere answers the same; the row it is not built for says what differs, and exits 20."""
    subprocess.run(["skopeo", "copy", "-q", built.entry["ref"], f"oci:{tmp_path}/copy:x"], check=True)
    image = ("--image", f"oci:{tmp_path}/copy:x", "--engine", "sandbox", "--json")
    same = json.loads(built.kiln.run("validate", "--target", ROW, "--checks", "static.*", *image, status=21))
    assert same["digest"] == built.entry["digest"]
    assert {check["status"] for check in same["checks"] if check["level"] == "S"} == {"pass"}
    other = built.kiln.run("validate", "--target", "torch28-cu128", "--checks", "static.*", *image, status=20)
    failed = {check["id"] for check in json.loads(other)["checks"] if check["status"] == "fail"}
    assert {"static.labels", "static.versions"} <= failed


@pytest.mark.skipif(not FIND_LINKS, reason="no wheels at hand")
def test_wheel_at_hand_counts_only_with_the_locked_hash(built: Row, tmp_path: Path) -> None:
    """A file of the right name and other bytes is not used."""
    found = (built.kiln.home / "wheels").rglob("filelock-*.whl")
    locked = (ROOT / "images" / "locks" / f"{ROW}-py3.11-x86_64.txt").read_text()
    (wheel,) = (path for path in found if path.parent.name in locked)
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / wheel.name).write_bytes(wheel.read_bytes() + b"x")
    for path in Path(FIND_LINKS).glob("*.whl"):
        (folder / path.name).symlink_to(path)
    home = Kiln(tmp_path / "fresh")
    home.run("build", "--target", ROW, "--no-validate", env={"TORCHKILN_FIND_LINKS": str(folder)})
    (fetched,) = list((home.home / "wheels").rglob("filelock-*.whl"))
    assert fetched.read_bytes() == wheel.read_bytes()
