"""The tar writer: order, owners, modes and long names, read back by two independent readers."""

from __future__ import annotations

import errno
import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.toys import tar_bytes, unpacked
from torchkiln import process
from torchkiln.errors import HostError, ImageError
from torchkiln.layers.archive import Entry, directory, directory_mode, header, order, write_layer
from torchkiln.oci.store import Store
from torchkiln.specs import LAYER_TIME

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO


def file(path: str, mode: int = 0o644) -> Entry:
    """A file entry."""
    return Entry(path=path, kind="file", mode=mode)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "store")


def long_path(length: int, part: int = 60) -> str:
    """A path of exactly that many bytes."""
    text = ("x" * part + "/") * (length // (part + 1) + 1)
    return text[: length - 1].rstrip("/").ljust(length, "y")


@pytest.mark.parametrize("length", [1, 99, 100, 101, 155, 156, 157, 254, 255, 256, 257, 300, 1000])
@pytest.mark.parametrize("part", [20, 60, 99, 100, 101, 155, 200])
def test_names_of_any_length_come_back(store: Store, tmp_path: Path, length: int, part: int) -> None:
    """build-long-paths: byte-exact by Python's tarfile and GNU tar."""
    path = long_path(length, part)
    layer = write_layer(store, "long", [(file(path), b"content")])
    assert unpacked(store, layer)[path][1] == b"content"
    listed = process.run(["tar", "--list", "--file", "-"], stdin=tar_bytes(store, layer), cwd=tmp_path)
    assert listed.stdout.decode().splitlines()[-1] == path


@pytest.mark.parametrize("target", ["a", "t" * 100, "t" * 101, "t" * 200, "../é", "/absolute/" + "x" * 300])
def test_link_targets_of_any_length_come_back(store: Store, target: str) -> None:
    """build-long-paths: a symlink target of 200 bytes, and others."""
    layer = write_layer(store, "links", [(Entry(path="link", kind="symlink", mode=0o777, target=target), None)])
    entry = unpacked(store, layer)["link"][0]
    assert (entry.issym(), entry.linkname) == (True, target)


@pytest.mark.parametrize(
    "name", ["é", "日本語/ファイル.py", "emoji-😀.txt", "ü" * 49, "ü" * 50, "ü" * 51, "tab\tnewline\n"]
)
def test_names_outside_ascii_come_back(store: Store, name: str) -> None:
    """In UTF-8, through extended headers."""
    assert name in unpacked(store, write_layer(store, "names", [(file(name), b"")]))


def test_extended_headers_only_where_needed() -> None:
    """A name that ustar can hold costs one block."""
    assert len(header(file("a" * 100))) == 512
    assert len(header(file("d" * 155 + "/" + "a" * 100))) == 512
    assert len(header(file("a" * 101))) == 512 * 3
    assert len(header(file("é"))) == 512 * 3


def test_parents_once_before_children_with_their_modes(store: Store) -> None:
    """build-implied-parent-dirs: each parent once, first, with a mode that depends on its path alone."""
    entries = [
        file("opt/venv/bin/x"),
        file("opt/venv/lib/a"),
        file("root/.keep"),
        file("tmp/x/file"),
        file("var/tmp/y"),
    ]
    found = unpacked(store, write_layer(store, "parents", [(entry, b"") for entry in entries]))
    names = list(found)
    for name in names:
        for parent in [name.rpartition("/")[0]] if "/" in name else []:
            assert names.index(parent) < names.index(name)
    modes = {name: entry.mode for name, (entry, _) in found.items() if entry.isdir()}
    assert modes == {
        "opt": 0o755,
        "opt/venv": 0o775,
        "opt/venv/bin": 0o775,
        "opt/venv/lib": 0o775,
        "root": 0o700,
        "tmp": 0o1777,
        "tmp/x": 0o755,
        "var": 0o755,
        "var/tmp": 0o1777,
    }


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        ("workspace", 0o1777),
        ("home", 0o755),
        ("home/torch", 0o775),
        ("home/torch/.cache", 0o775),
        ("opt/venvx", 0o755),
        ("root/below", 0o755),
        ("opt/torchkiln", 0o755),
    ],
)
def test_the_table_of_directory_modes(path: str, mode: int) -> None:
    """What every layer says about a directory is the same, since the last layer wins."""
    assert directory_mode(path) == mode
    assert directory(path).mode == mode


def test_given_directories_are_not_repeated(store: Store) -> None:
    """A directory that the caller describes keeps its own mode and owner."""
    mail = Entry(path="var/mail", kind="directory", mode=0o2775, gid=8)
    found = unpacked(store, write_layer(store, "given", [(mail, None), (file("var/mail/x"), b"")]))
    assert (found["var/mail"][0].mode, found["var/mail"][0].gid) == (0o2775, 8)


def test_time_owner_and_names_are_fixed(store: Store) -> None:
    """Root owns everything, without user names, at one time."""
    entry, _ = unpacked(store, write_layer(store, "fixed", [(file("x"), b"")]))["x"]
    assert (entry.uid, entry.gid, entry.uname, entry.gname, entry.mtime) == (0, 0, "", "", LAYER_TIME)


def test_set_bits_owners_and_attributes_stay(store: Store) -> None:
    """build-setuid-and-capabilities-lost: 4755, 2755, owners and file capabilities are in the layer."""
    capability = b"\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\n=\xff\x00"
    entries = [
        (Entry(path="bin/ping", kind="file", mode=0o755, xattrs={"security.capability": capability}), b"ping"),
        (Entry(path="bin/sudo", kind="file", mode=0o4755), b"sudo"),
        (Entry(path="etc/shadow", kind="file", mode=0o640, gid=42), b""),
        (Entry(path="var/local", kind="directory", mode=0o2755, gid=50), None),
    ]
    layer = write_layer(store, "bits", entries)
    found = unpacked(store, layer)
    assert found["bin/sudo"][0].mode == 0o4755
    assert found["var/local"][0].mode == 0o2755
    assert (found["etc/shadow"][0].mode, found["etc/shadow"][0].gid) == (0o640, 42)
    raw = found["bin/ping"][0].pax_headers["SCHILY.xattr.security.capability"]
    assert raw.encode("utf-8", "surrogateescape") == capability


def test_hard_links(store: Store) -> None:
    """Point to a path of the same layer and have no content."""
    entries = [(file("a"), b"same"), (Entry(path="b", kind="hardlink", mode=0o644, target="a"), None)]
    assert unpacked(store, write_layer(store, "hard", entries))["b"][0].linkname == "a"


def test_numbers_too_large_for_octal_fields(store: Store) -> None:
    """Owners beyond 2,097,151 and sizes of 8 GiB go into extended headers."""
    entry = Entry(path="x", kind="file", mode=0o644, uid=3_000_000, gid=1 << 31)
    found, _ = unpacked(store, write_layer(store, "owners", [(entry, b"")]))["x"]
    assert (found.uid, found.gid) == (3_000_000, 1 << 31)
    big = tarfile.TarFile(fileobj=io.BytesIO(header(Entry(path="x", kind="file", mode=0o644, size=9 << 30))))
    assert big.next().size == 9 << 30  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "path", ["", "/x", "../x", "a/../x", "a//b", "./a", "a/", "a/.", ".wh.x", "a/.wh..wh..opq", "a\0b"]
)
def test_unsafe_paths_are_refused(store: Store, path: str) -> None:
    """Absolute, upward, empty, or a whiteout: none reaches a layer, and no blob is left."""
    with pytest.raises(ImageError, match="unsafe path"):
        write_layer(store, "unsafe", [(file(path), b"")])
    assert list(store.blobs.iterdir()) == []


def test_a_path_occurs_once(store: Store) -> None:
    """layer.md: no duplicate paths."""
    with pytest.raises(ImageError, match="a/b is there already, as a file"):
        write_layer(store, "twice", [(file("a/b"), b""), (file("a/b"), b"")])
    with pytest.raises(ImageError, match="a is there already, as a directory"):
        write_layer(store, "late", [(file("a/b"), b""), (directory("a"), None)])


def test_nothing_goes_through_a_symlink(store: Store) -> None:
    """build-usrmerge-symlink-replaced: a path below a symlink of the same layer is refused."""
    link = Entry(path="lib", kind="symlink", mode=0o777, target="usr/lib")
    with pytest.raises(ImageError, match="goes through lib, which is a symlink"):
        write_layer(store, "through", [(link, None), (file("lib/x"), b"")])


def test_content_from_files_is_read_in_pieces(store: Store, tmp_path: Path) -> None:
    """An opener gives the content; a file that shrank or grew since is an error."""
    path = tmp_path / "big"
    path.write_bytes(b"0123456789" * 300_000)
    entry = Entry(path="big", kind="file", mode=0o644, size=3_000_000)
    layer = write_layer(store, "big", [(entry, lambda: path.open("rb"))])
    assert unpacked(store, layer)["big"][1] == path.read_bytes()
    path.write_bytes(b"short")
    with pytest.raises(ImageError, match="content and size differ"):
        write_layer(store, "changed", [(entry, lambda: path.open("rb"))])


def test_a_full_disk_says_so_and_leaves_nothing(store: Store) -> None:
    """ENOSPC becomes HostError; the partial blob is gone."""

    def full() -> BinaryIO:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(HostError, match="the disk is full"):
        write_layer(store, "full", [(Entry(path="x", kind="file", mode=0o644, size=1), full)])
    assert list(store.blobs.iterdir()) == []


def test_order_keeps_a_directory_and_its_content_together() -> None:
    """Sorting by `order` is a walk through the tree."""
    assert sorted(["a!", "a/b", "a", "a-c", "a/b/c"], key=order) == ["a", "a/b", "a/b/c", "a!", "a-c"]


def test_golden_bytes(store: Store) -> None:
    """The bytes of a layer never change silently: a change here needs a new FORMAT in plan.py."""
    entries = [
        (file("a/empty"), b""),
        (file("a/text"), b"some text\n" * 1000),
        (Entry(path="link", kind="symlink", mode=0o777, target="a/text"), None),
        (file("names/" + "é" * 80), bytes(range(256)) * 5000),
    ]
    layer = write_layer(store, "golden", entries)
    assert layer.diff_id == "sha256:be599a43c89ad482959d5409fcc720c1d7b9b30e2ccf853375f4cd56c84eaa4d"
    assert layer.descriptor.digest == "sha256:7eb0c45a49949ebaf8299cae66371b9d108da8307ba1e5436e3891b9797c15b6"
