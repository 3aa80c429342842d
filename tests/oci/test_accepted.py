"""Layers and images as other tools of the field read them: the same files, bytes, modes and links from each."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.toys import make_wheel, spec, unpacked
from torchkiln.engines import archive
from torchkiln.layers import wheel
from torchkiln.layers.archive import Entry, write_layer
from torchkiln.layers.recompress import recompress
from torchkiln.oci import digest as digests
from torchkiln.oci.compression import Compression
from torchkiln.oci.image import LAYER_TYPE, ZSTD_TYPE, Config, Image, append, manifest_descriptor
from torchkiln.oci.load import layout
from torchkiln.oci.pull import pull
from torchkiln.oci.push import push
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchkiln.oci.image import Layer

Tree = dict[str, tuple[str, int, str]]
"""Path → kind, mode, and the content's digest or where the link leads."""
GOLDEN = Path(__file__).parent.parent / "golden" / "golden-1.0-py3-none-any.whl"
ODD = {
    f"odd/{'d' * 90}/{'e' * 90}/{'f' * 200}.txt": "long",
    "odd/blank name é.txt": "x",
    "odd/empty": "",
    "odd/tool": "#!",
}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="users and modes of unpacked files need root")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An OCI image layout."""
    return Store(tmp_path / "store")


@pytest.fixture
def image(store: Store, tmp_path: Path) -> Image:
    """Wheels with stored, empty, streamed and long-named members, a shared layer of two, and links."""
    odd = make_wheel(tmp_path, "odd", files=ODD, executable=["odd/tool"], stored=["odd/tool"], streamed=True)
    small = [make_wheel(tmp_path, name, files={f"{name}.py": f"{name} = 1\n" * 40000}) for name in ("one", "two")]
    links = [
        (Entry(path="opt/link", kind="symlink", mode=0o777, target="venv/lib"), b""),
        (Entry(path="opt/open", kind="directory", mode=0o1777), b""),
    ]
    layers = [wheel.build(store, *spec(*paths)) for paths in ((GOLDEN,), (odd,), small)]
    made = append(Image(config=Config(command=("true",))), [*layers, write_layer(store, "links", links)])
    store.put_image(made, "toy")
    return made


def expected(store: Store, image: Image) -> Tree:
    """By the standard library's reader, lowest layer first; modes of links say nothing."""
    return {path: row for layer in image.layers for path, row in _members(store, layer)}


def _members(store: Store, layer: Layer) -> Iterator[tuple[str, tuple[str, int, str]]]:
    for path, (entry, content) in unpacked(store, layer).items():
        assert (entry.uid, entry.gid) == (0, 0)
        if entry.issym():
            yield path, ("link", 0, entry.linkname)
        else:
            yield path, ("dir", entry.mode, "") if entry.isdir() else ("file", entry.mode, digests.of_bytes(content))


def found(root: Path) -> Tree:
    """What lies in a folder; all of it owned by root."""
    tree: Tree = {}
    for path in root.rglob("*"):
        about = path.lstat()
        assert (about.st_uid, about.st_gid) == (0, 0), path
        mode = stat.S_IMODE(about.st_mode)
        if path.is_symlink():
            row = ("link", 0, os.readlink(path))  # noqa: PTH115  as it stands
        else:
            row = ("dir", mode, "") if path.is_dir() else ("file", mode, digests.of_file(path)[0])
        tree[str(path.relative_to(root))] = row
    return tree


def run(*command: str | Path, **environment: str) -> str:
    """What a tool prints; what it complains of, if it fails."""
    done = subprocess.run(
        [str(word) for word in command], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.strip()


@contextmanager
def by_skopeo(store: Store, _: Image, work: Path) -> Iterator[Path]:
    """Copies it twice, checking each digest, and what it wrote is unpacked by umoci."""
    run("skopeo", "copy", "-q", f"oci:{store.root}:toy", f"dir:{work}/dir")
    run("skopeo", "copy", "-q", f"dir:{work}/dir", f"oci:{work}/copy:toy")
    with by_umoci(Store(work / "copy"), _, work) as tree:
        yield tree


@contextmanager
def by_umoci(store: Store, _: Image, work: Path) -> Iterator[Path]:
    """The reference tool of the image layout."""
    run("umoci", "raw", "unpack", "--image", f"{store.root}:toy", work / "tree")
    yield work / "tree"


@contextmanager
def by_containers(tool: str, store: Store, work: Path) -> Iterator[Path]:
    """Buildah and Podman share a library, and differ in how they ask for a mounted image."""
    with tempfile.TemporaryDirectory(prefix="run-") as short:  # podman takes no longer path
        options = ("--root", work / "root", "--runroot", short, "--storage-driver", "vfs")
        name = run(tool, *options, "pull", "-q", f"oci:{store.root}:toy").splitlines()[-1]
        if tool == "buildah":
            name = run(tool, *options, "from", "--pull-never", name)
        tree = run(tool, *options, *(() if tool == "buildah" else ("image",)), "mount", name)
        try:
            yield Path(tree)
        finally:
            run(tool, *options, *(("rm", name) if tool == "buildah" else ("image", "unmount", name)))


@contextmanager
def by_buildah(store: Store, _: Image, work: Path) -> Iterator[Path]:
    """With its own storage."""
    with by_containers("buildah", store, work) as tree:
        yield tree


@contextmanager
def by_podman(store: Store, _: Image, work: Path) -> Iterator[Path]:
    """With its own storage."""
    with by_containers("podman", store, work) as tree:
        yield tree


@contextmanager
def by_containerd(store: Store, image: Image, work: Path) -> Iterator[Path]:
    """Its importer takes the archive that `docker load` takes."""
    with (work / "image.tar").open("wb") as file:
        file.writelines(archive.stream(image, store, ["toy:one"], zstd=True))  # as it is, in whatever form
    socket = work / "containerd.sock"
    (work / "containerd.toml").write_text(
        f'version = 2\nroot = "{work}/root"\nstate = "{work}/state"\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        f'[grpc]\naddress = "{socket}"\n[ttrpc]\naddress = "{socket}.ttrpc"\n'
    )
    command = ["containerd", "--config", str(work / "containerd.toml"), "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as daemon:
        try:
            ctr = ("ctr", "--connect-timeout", "60s", "--address", socket, "images")
            run(*ctr, "import", "--snapshotter", "native", work / "image.tar")
            (work / "tree").mkdir()
            run(*ctr, "mount", "--snapshotter", "native", "docker.io/library/toy:one", work / "tree")
            try:
                yield work / "tree"
            finally:
                run(*ctr, "unmount", work / "tree")
        finally:
            daemon.terminate()


READERS: dict[str, Callable[[Store, Image, Path], object]] = {
    "skopeo": by_skopeo,
    "umoci": by_umoci,
    "buildah": by_buildah,
    "podman": by_podman,
    "containerd": by_containerd,
}


def needs(*tools: str) -> None:
    """Skip without these; fail where everything is required."""
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        reason = f"{' and '.join(missing)} missing: apt-get install {' '.join(missing)}"
        pytest.fail(reason) if os.environ.get("TORCHKILN_REQUIRE") else pytest.skip(reason)


@pytest.mark.parametrize("tool", READERS)
def test_another_tool_unpacks_the_same(tool: str, store: Store, image: Image, tmp_path: Path) -> None:
    """Every path with its bytes, mode, owner and target, and nothing else."""
    needs(tool, "umoci")
    (tmp_path / "work").mkdir()
    with READERS[tool](store, image, tmp_path / "work") as tree:  # type: ignore[attr-defined]
        assert found(tree) == expected(store, image)


@pytest.fixture
def mixed(store: Store, image: Image) -> Image:
    """The same image with all but its first layer in zstd, as on another's base."""
    first, *others = image.layers
    level = Compression(kind="zstd", level=3)
    made = replace(image, layers=(first, *(recompress(store, layer, level) for layer in others)))
    store.put_image(made, "toy")
    return made


@pytest.mark.parametrize("tool", ["buildah", "podman", "containerd"])
def test_another_tool_unpacks_the_same_from_zstd(
    tool: str, store: Store, image: Image, mixed: Image, tmp_path: Path
) -> None:
    """Every path as in the gzip image, from layers in both forms; umoci 0.4 knows no zstd yet."""
    needs(tool)
    (tmp_path / "work").mkdir()
    with READERS[tool](store, mixed, tmp_path / "work") as tree:  # type: ignore[attr-defined]
        assert found(tree) == expected(store, image)


def test_skopeo_keeps_zstd_as_it_is(store: Store, mixed: Image, tmp_path: Path) -> None:
    """From layout to folder and back: the same digest, types and blobs, each checked on the way; and inspected."""
    run("skopeo", "copy", "-q", f"oci:{store.root}:toy", f"dir:{tmp_path}/dir")
    run("skopeo", "copy", "-q", f"dir:{tmp_path}/dir", f"oci:{tmp_path}/copy:toy")
    assert layout(f"{tmp_path}/copy:toy").image == mixed
    seen = json.loads(run("skopeo", "inspect", f"oci:{tmp_path}/copy:toy"))
    assert seen["Digest"] == manifest_descriptor(mixed).digest
    assert seen["Layers"] == [layer.descriptor.digest for layer in mixed.layers]


@pytest.mark.registry
def test_a_registry_has_zstd_layers(store: Store, mixed: Image, tmp_path: Path) -> None:
    """Skopeo's copy and our push agree on the digest; skopeo inspects it, and both bring it back as it was."""
    place = f"{os.environ['TORCHKILN_TEST_REGISTRY']}/torchkiln-test/zstd"
    run("skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{store.root}:toy", f"docker://{place}:theirs")
    pushed = push(mixed, store, f"{place}:ours", environment={})
    for tag in ("theirs", "ours"):
        seen = json.loads(run("skopeo", "inspect", "--tls-verify=false", f"docker://{place}:{tag}"))
        assert (seen["Digest"], seen["Layers"]) == (pushed.digest, [layer.descriptor.digest for layer in mixed.layers])
        raw = json.loads(run("skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{place}:{tag}"))
        assert {layer["mediaType"] for layer in raw["layers"]} == {LAYER_TYPE, ZSTD_TYPE}
    run(
        "skopeo",
        "copy",
        "-q",
        "--src-tls-verify=false",
        f"docker://{place}@{pushed.digest}",
        f"oci:{tmp_path}/back:toy",
    )
    assert layout(f"{tmp_path}/back:toy").image == mixed
    pulled = pull(f"{place}@{pushed.digest}", Store(tmp_path / "pulled"), machine="x86_64", environment={}).image
    assert [layer.descriptor for layer in pulled.layers] == [layer.descriptor for layer in mixed.layers]


def test_the_copy_of_another_tool_is_the_same_image(store: Store, image: Image, tmp_path: Path) -> None:
    """Skopeo keeps the digest: nothing about our documents needs rewriting."""
    run("skopeo", "copy", "-q", f"oci:{store.root}:toy", f"oci:{tmp_path}/copy:toy")
    (copied,) = json.loads((tmp_path / "copy" / "index.json").read_bytes())["manifests"]
    assert copied["digest"] == manifest_descriptor(image).digest
