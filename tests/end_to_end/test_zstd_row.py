"""A row in zstd: built beside the gzip one, pushed, pulled by a machine that has nothing else, run, and loaded."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.kiln import ROW, Kiln
from torchkiln.oci.image import ZSTD_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.kiln import Row

ZSTD = ("--target", ROW, "--compression", "zstd")


@pytest.fixture(scope="module")
def entry(built: Row) -> Mapping[str, Any]:
    """The row in zstd, from the layers of the gzip one."""
    (found,) = json.loads(built.kiln.run("build", *ZSTD, "--no-validate", "--json"))
    return found  # type: ignore[no-any-return]


def config(kiln: Kiln, digest: str) -> tuple[str, set[str]]:
    """Digest of the config of an image in the cache, and media types of its layers."""
    blob = kiln.home / "store" / "blobs" / "sha256" / digest.removeprefix("sha256:")
    manifest = json.loads(blob.read_bytes())
    return manifest["config"]["digest"], {layer["mediaType"] for layer in manifest["layers"]}


def test_it_is_the_same_image_in_smaller_blobs(built: Row, entry: Mapping[str, Any]) -> None:
    """Same config and diff_ids, every blob another one of zstd's type, a tenth smaller at least; all of it holds."""
    assert config(built.kiln, entry["digest"])[0] == config(built.kiln, built.entry["digest"])[0]
    assert config(built.kiln, entry["digest"])[1] == {ZSTD_TYPE}
    ours, gzip = entry["layers"], built.entry["layers"]
    assert [layer["diff_id"] for layer in ours] == [layer["diff_id"] for layer in gzip]
    assert not {layer["digest"] for layer in ours} & {layer["digest"] for layer in gzip}
    assert entry["compressed_size"] < 0.9 * built.entry["compressed_size"]
    (planned,) = json.loads(built.kiln.run("plan", *ZSTD, "--json"))
    assert [layer["key"] for layer in planned["layers"][1:]] == [layer["key"] for layer in ours[1:]]
    assert "every digest holds" in built.kiln.run("verify", *ZSTD)


@pytest.mark.registry
def test_it_runs_where_there_is_nothing_else(built: Row, entry: Mapping[str, Any], tmp_path: Path) -> None:
    """Another machine pulls it and unpacks zstd for its sandbox; the gzip image is not asked for."""
    place = f"{os.environ['TORCHKILN_TEST_REGISTRY']}/torchkiln-test/zstd-{secrets.token_hex(4)}"
    assert json.loads(built.kiln.run("push", f"{place}:one", *ZSTD, "--json"))["digest"] == entry["digest"]
    other = Kiln(tmp_path / "home")
    assert other.run("pull", f"{place}:one").split() == [f"{ROW}-zstd3", entry["digest"]]
    said = other.run(
        "shell", *ZSTD, "--engine", "sandbox", "--command", "python -c 'import torch; print(torch.ones(3).sum())'"
    )
    assert "tensor(3.)" in said


@pytest.mark.docker
def test_any_docker_loads_it(built: Row, entry: Mapping[str, Any]) -> None:
    """Also one that reads no zstd: it has the image under the id of the gzip one, or of its manifest."""
    (name,) = built.kiln.run("load", *ZSTD, "--tag", "torchkiln/test-zstd:row").split()
    command = ["docker", "image", "inspect", "--format", "{{.Id}}", name]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert found in {config(built.kiln, built.entry["digest"])[0], entry["digest"]}
    subprocess.run(["docker", "rmi", name], check=True, stdout=subprocess.DEVNULL)
