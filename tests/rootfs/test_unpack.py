from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import rawlayers
from tests.rawlayers import MOMENT, Member, file, folder, hard_link, layer, listing, symlink
from torchkiln import rootfs
from torchkiln.errors import HostError, ImageError
from torchkiln.oci import digest as digests
from torchkiln.oci.image import LAYER_TYPE, ZSTD_TYPE
from torchkiln.rootfs.once import remove

if TYPE_CHECKING:
    from torchkiln.home import Home
    from torchkiln.oci.store import Store

unpacking = importlib.import_module("torchkiln.rootfs.unpack")  # the package calls its function so
ROOT = Path(__file__).parent.parent.parent
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="owners and capabilities need root")


def leftovers(home: Home) -> list[Path]:
    """What an unpacking left in the folder for work in progress."""
    return list(home.temporary.iterdir())


def test_unpack(home: Home, store: Store) -> None:
    """Files, folders, both kinds of links, modes and exact times come out as the tar has them."""
    tree = rootfs.unpack(
        home,
        store,
        layer(
            store,
            folder("d", mode=0o750),
            file("d/program", b"x", mode=0o4755),
            hard_link("d/same", "d/program"),
            symlink("link", "/etc/passwd"),
            file("fine", b"y", headers={"mtime": "315619200.123456789"}),
            folder("sticky", mode=0o1777),
        ),
    )
    assert listing(tree) == {
        "d": "/", "d/program": "x", "d/same": "x", "link": "/etc/passwd", "fine": "y", "sticky": "/",
    }  # fmt: skip
    assert (tree / "d/program").stat().st_ino == (tree / "d/same").stat().st_ino
    modes = {name: stat.S_IMODE((tree / name).stat().st_mode) for name in ("d", "d/program", "sticky")}
    assert modes == {"d": 0o750, "d/program": 0o4755, "sticky": 0o1777}
    assert {(tree / name).lstat().st_mtime_ns for name in ("d", "d/program", "link")} == {MOMENT * 10**9}
    assert (tree / "fine").stat().st_mtime_ns == 315619200123456789


def test_layers_in_zstd_and_gzip_make_one_tree(home: Home, store: Store) -> None:
    """What is unpacked depends on the tar alone; a bomb in zstd stops at the stated size, as one in gzip does."""
    members = [[folder("d"), file("d/one", b"1" * 9000)], [file("d/.wh.one"), file("d/two", b"2")]]
    lower = layer(store, *members[0], media_type=ZSTD_TYPE)
    assert listing(rootfs.merge(home, store, [lower, layer(store, *members[1])])) == {"d": "/", "d/two": "2"}
    for form in (ZSTD_TYPE, LAYER_TYPE):
        bomb = layer(store, raw=rawlayers.tar([file("bomb")]) + bytes(64 << 20), media_type=form)
        with pytest.raises(ImageError, match="more than the stated"):
            rootfs.unpack(home, store, replace(bomb, unpacked_size=1 << 20, diff_id=digests.of_bytes(form.encode())))
    assert leftovers(home) == []


@root_only
def test_owners_and_capabilities(home: Home, store: Store) -> None:
    """As root, files keep owner, group and security.capability; overlayfs is never given orders."""
    capability = b"\1\0\0\2\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0".decode()
    orders = {"SCHILY.xattr.trusted.overlay.redirect": "/etc", "SCHILY.xattr.user.overlay.opaque": "y"}
    ping = file("ping", mode=0o755, uid=5, gid=6, headers={"SCHILY.xattr.security.capability": capability} | orders)
    tree = rootfs.merge(home, store, [layer(store, ping, folder("d", headers=orders, uid=7))])
    about = (tree / "ping").stat()
    assert (about.st_uid, about.st_gid, (tree / "d").stat().st_uid) == (5, 6, 7)
    assert os.getxattr(tree / "ping", "security.capability") == capability.encode()
    assert [os.listxattr(tree / name) for name in ("ping", "d")] == [["security.capability"], []]


@pytest.mark.parametrize(
    "members",
    [
        [file("../escaped", b"x")],
        [file("a/../../escaped", b"x")],
        [symlink("out", "OUTSIDE"), file("out/escaped", b"x")],
        [symlink("a", "b"), symlink("b", "OUTSIDE"), file("a/escaped", b"x")],
        [hard_link("secret", "../../../secret")],
        [symlink("out", "OUTSIDE"), hard_link("stolen", "out/secret")],
        [hard_link("stolen", "not/there")],
        [hard_link("stolen", "/OUTSIDE/secret")],
        [file("a", b"x"), file("a/escaped", b"y")],
        [folder("/".join("d" * 300))],
    ],
)
def test_hostile_layers(home: Home, store: Store, tmp_path: Path, members: list[Member]) -> None:
    """A layer that reaches out of its tree, by any road, is refused and leaves nothing."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    placed = [replace(member, target=member.target.replace("OUTSIDE", str(outside))) for member in members]
    with pytest.raises(ImageError):
        rootfs.unpack(home, store, layer(store, *placed))
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert not list(tmp_path.rglob("escaped"))
    assert leftovers(home) == []


def test_absolute_paths_are_below_the_root(home: Home, store: Store) -> None:
    """Older tools write them; they mean the root of the image."""
    tree = rootfs.unpack(home, store, layer(store, file("/etc/x", b"1"), file("./etc/y", b"2")))
    assert listing(tree) == {"etc": "/", "etc/x": "1", "etc/y": "2"}


def test_links_are_replaced_not_followed(home: Home, store: Store, tmp_path: Path) -> None:
    """A later entry of the same name stands, and what a link pointed at is untouched."""
    (tmp_path / "target").write_text("safe")
    link = symlink("x", str(tmp_path / "target"))
    tree = rootfs.unpack(home, store, layer(store, link, file("x", b"new"), symlink("d", "/etc"), folder("d")))
    assert listing(tree) == {"x": "new", "d": "/"}
    assert (tmp_path / "target").read_text() == "safe"


def test_a_hard_link_to_a_link_is_a_link(home: Home, store: Store, tmp_path: Path) -> None:
    """Not another name for what that one leads to."""
    secret = tmp_path / "secret"
    secret.write_text("s")
    one = layer(store, symlink("s", str(secret)), hard_link("h", "s"))
    for tree in (rootfs.unpack(home, store, one), rootfs.merge(home, store, [one])):
        assert listing(tree) == {"s": str(secret), "h": str(secret)}
        assert (tree / "s").lstat().st_ino == (tree / "h").lstat().st_ino
    assert secret.stat().st_nlink == 1


def test_devices_are_left_out(home: Home, store: Store) -> None:
    """Engines supply /dev; a node in a cache folder would be a hole."""
    device = Member(name="dev/sda", kind=tarfile.BLKTYPE)
    tree = rootfs.unpack(home, store, layer(store, device, Member(name="pipe", kind=tarfile.FIFOTYPE)))
    assert [path.name for path in tree.iterdir() if path.name != "dev"] == ["pipe"]
    assert stat.S_ISFIFO((tree / "pipe").stat().st_mode)


def test_content_must_be_what_the_diff_id_names(home: Home, store: Store) -> None:
    """Another tar, a longer one, a damaged one, and one cut short are refused, and nothing is kept."""
    good = layer(store, file("a", b"x" * 5000))
    other = layer(store, file("b"))
    blob = store.path(good.descriptor.digest)
    cases = [
        replace(good, diff_id=other.diff_id),
        replace(good, unpacked_size=good.unpacked_size - 1),
    ]
    for case in cases:
        with pytest.raises(ImageError):
            rootfs.unpack(home, store, case)
    whole = blob.read_bytes()
    for damaged in (whole[:-20], whole[:40] + bytes([whole[40] ^ 255]) + whole[41:], b"\x28\xb5\x2f\xfd" + whole):
        blob.write_bytes(damaged)
        with pytest.raises(ImageError):
            rootfs.unpack(home, store, good)
    assert leftovers(home) == []
    assert not list((home.rootfs / "layers-2").iterdir())


def test_a_broken_header_is_not_the_end(home: Home, store: Store) -> None:
    """What other readers would take for the end hides nothing from us."""
    raw = bytearray(rawlayers.tar([file("a", b"x"), file("b", b"y")]))
    raw[1024 + 148] ^= 1  # checksum of the second header
    with pytest.raises(ImageError, match="broken header"):
        rootfs.unpack(home, store, layer(store, raw=bytes(raw)))


def test_huge_extended_header(home: Home, store: Store) -> None:
    """A header is not read into memory without bound."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 30
    with pytest.raises(ImageError, match="a header of"):
        rootfs.unpack(home, store, layer(store, raw=info.tobuf() + bytes(1 << 16)))


def test_private(home: Home, store: Store) -> None:
    """Setuid programs of images are out of reach of the host's other users."""
    rootfs.unpack(home, store, layer(store, file("su", mode=0o4755)))
    assert stat.S_IMODE(home.rootfs.stat().st_mode) == 0o700


def test_plain_tar(home: Home, store: Store) -> None:
    """A layer need not be compressed."""
    raw = rawlayers.tar([file("a", b"1")])
    plain = replace(layer(store, raw=raw), descriptor=store.put(raw, "application/vnd.oci.image.layer.v1.tar"))
    assert plain.diff_id == digests.of_bytes(raw)
    assert listing(rootfs.unpack(home, store, plain)) == {"a": "1"}


LONG = "/".join("d" * 99 for _ in range(40))
"""As long a path as a program can name but for a few characters."""


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([file(".wh.")], "a whiteout of nothing"),
        ([file(".wh..")], "a whiteout of nothing"),
        ([file("a/b/.wh...")], "a whiteout of nothing"),
        ([file(".wh.a/b", b"1")], "a whiteout of nothing"),
        ([file(".wh.a/.wh..wh..opq")], "a whiteout of nothing"),
        ([file("n" * 256)], "too long"),
        ([file("é" * 128)], "too long"),
        ([file(f"{LONG}/{'n' * 95}")], "too long"),
        ([symlink("s", "")], "a link to nothing"),
        ([symlink("s", "t" * 4096)], "cannot be made: File name too long"),
        ([hard_link("a", "a")], "no file of the layer"),
        ([file("a"), hard_link("a", "a")], "no file of the layer"),
        ([folder("d"), hard_link("a", "d")], "no file of the layer"),
        ([hard_link("a", "")], "no file of the layer"),
        ([hard_link("a", ".")], "no file of the layer"),
        ([folder("d"), file("d/a"), file("d"), hard_link("a", "d/a")], "no folder"),
        ([file(".", b"1")], "the root is a folder"),
        ([symlink("/", "etc")], "the root is a folder"),
        ([file("a", headers={"SCHILY.xattr.user.a": "v" * 70000})], "an attribute that no file has"),
        ([file("a", headers={"SCHILY.xattr.user.a\0b": "v"})], "an attribute that no file has"),
        ([file("a", headers={f"SCHILY.xattr.user.{'n' * 300}": "v"})], "cannot be made"),
        ([file("a"), file("a/b"), symlink("a", "..")], "no folder"),
        ([folder("d"), symlink("d", ".."), file("d/x")], "no folder"),
        ([folder("d/e"), symlink("d", "."), folder("d/e")], "no folder"),
    ],
)
def test_what_no_tree_can_have(home: Home, store: Store, members: list[Member], says: str) -> None:
    """Impossible names, targets and attributes are the layer's fault; the error names it and the entry."""
    hostile = layer(store, *members)
    with pytest.raises(ImageError, match=says) as caught:
        rootfs.unpack(home, store, hostile)
    assert hostile.descriptor.digest in caught.value.where
    assert any(f"{member.name.strip('/')[:150]}" in caught.value.what for member in members)
    assert leftovers(home) == []


def test_longest_names(home: Home, store: Store) -> None:
    """Whatever programs can name is unpacked and merged, wherever the cache lies, and can be deleted."""
    deep = "/".join("d" * 200)
    members = [file("n" * 255, b"1"), file(f"{LONG}/{'n' * 94}", b"2"), folder(deep), symlink("s", "t" * 4095)]
    rootfs.merge(home, store, [layer(store, *members), layer(store, file(f"{LONG}/m", b"3"), folder(deep))])
    (top,) = (home.rootfs / "stacks-2").iterdir()
    place = os.open(top / "tree", os.O_RDONLY)
    for part in LONG.split("/"):
        here = place
        place = os.open(part, os.O_RDONLY, dir_fd=here)
        os.close(here)
    assert sorted(os.listdir(place)) == ["m", "n" * 94]  # noqa: PTH208  a descriptor, not a path
    os.close(place)
    remove(top)
    assert not top.exists()


ONE_NAME = {
    "folder": folder("x", mode=0o700),
    "file": file("x", b"new", mode=0o640),
    "symlink": symlink("x", "elsewhere"),
    "link": hard_link("x", "other"),
    "fifo": Member(name="x", kind=tarfile.FIFOTYPE, mode=0o666),
    "device": Member(name="x", kind=tarfile.CHRTYPE),
}


def kind(path: Path) -> str:
    """Of what is there, in the words of `ONE_NAME`."""
    if not path.is_symlink() and not path.exists():
        return "device"
    about = path.lstat()
    kinds = {stat.S_IFDIR: "folder", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo"}
    return kinds.get(stat.S_IFMT(about.st_mode), "link" if about.st_nlink > 1 else "file")


@pytest.mark.parametrize("first", ONE_NAME)
@pytest.mark.parametrize("second", ONE_NAME)
def test_the_last_of_a_name_stands(home: Home, store: Store, first: str, second: str) -> None:
    """Whatever its kind and that of the one before, and what it stood for is untouched."""
    members = [file("other", b"other"), file("elsewhere", b"e"), ONE_NAME[first]]
    members += [file("x/below", b"b")] if first == "folder" else []
    tree = rootfs.unpack(home, store, layer(store, *members, ONE_NAME[second]))
    assert kind(tree / "x") == second
    assert (tree / "x/below").exists() == (first == second == "folder")
    assert [(tree / name).read_text() for name in ("other", "elsewhere")] == ["other", "e"]
    if second in ("folder", "fifo"):
        assert stat.S_IMODE((tree / "x").stat().st_mode) == ONE_NAME[second].mode


def test_a_folder_that_comes_again_is_another(home: Home, store: Store) -> None:
    """What an entry said of a folder that a later one replaced says nothing of the one made after that."""
    members = [folder("d/e", mode=0o711), file("d", b"1"), folder("d", mode=0o750), file("d/e/f", b"2")]
    tree = rootfs.unpack(home, store, layer(store, *members))
    assert [stat.S_IMODE((tree / name).stat().st_mode) for name in ("d", "d/e")] == [0o750, 0o755]


def test_folders_that_no_entry_describes(home: Home, store: Store) -> None:
    """They have the same mode and time wherever and whenever they are made."""
    umask = os.umask(0o077)
    try:
        tree = rootfs.unpack(home, store, layer(store, file("a/b/c")))
    finally:
        os.umask(umask)
    assert {(path.stat().st_mtime, stat.S_IMODE(path.stat().st_mode)) for path in (tree, tree / "a/b")} == {
        (MOMENT, 0o755)
    }


def test_notes_of_aufs(home: Home, store: Store) -> None:
    """Docker once wrote them into layers; they are no files and hide none."""
    tree = rootfs.unpack(home, store, layer(store, file(".wh..wh.aufs"), file(".wh..wh.plnk/1.2", b"x"), file("a")))
    assert listing(tree) == {"a": ""}
    assert not unpacking.notes(tree).removed


@pytest.mark.parametrize(
    ("bound", "members"),
    [
        ("MOST_ENTRIES", [file("a") for _ in range(51)]),
        ("MOST_ENTRIES", [file("/".join("d" * 51))]),
        ("MOST_ENTRIES", [file(f".wh.{number}") for number in range(51)]),
        ("MOST_NAMES", [file("/".join("d" * 10)), file(f"{'n' * 40}/a")]),
        ("MOST_NAMES", [folder(f"folder-{number}") for number in range(9)]),
        ("MOST_NAMES", [file(f".wh.{'n' * 51}")]),
    ],
)
def test_numbers_are_bounded(
    home: Home, store: Store, monkeypatch: pytest.MonkeyPatch, bound: str, members: list[Member]
) -> None:
    """Entries, also folders that none describes, and what has to be remembered of them."""
    monkeypatch.setattr(unpacking, bound, 50)
    with pytest.raises(ImageError, match="more than 50 entries" if bound == "MOST_ENTRIES" else "longer than 50 bytes"):
        rootfs.unpack(home, store, layer(store, *members))
    assert leftovers(home) == []


def test_sizes_are_bounded(home: Home, store: Store) -> None:
    """A file larger than its layer is refused before a byte of it is written; no stated size means no bound."""
    good = layer(store, file("a", b"x" * 5000))
    info = tarfile.TarInfo("huge")
    info.size = 1 << 42
    with pytest.raises(ImageError, match=f"'huge' has {1 << 42} bytes"):
        rootfs.unpack(home, store, layer(store, raw=info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)))
    for one, stated in ((good, 512), (good, good.unpacked_size - 1), (layer(store, folder("d")), 0)):
        with pytest.raises(ImageError, match="bytes"):
            rootfs.unpack(home, store, replace(one, unpacked_size=stated))
    assert leftovers(home) == []


def test_a_bomb(home: Home, store: Store) -> None:
    """What inflates to far more than stated is left as soon as it does."""
    bomb = layer(store, *(file(str(number), bytes(1 << 20)) for number in range(8)))
    with pytest.raises(ImageError, match="unpacks to more than the stated 2097152 bytes"):
        rootfs.unpack(home, store, replace(bomb, unpacked_size=2 << 20))
    assert leftovers(home) == []


def test_what_cannot_be_written(home: Home, store: Store) -> None:
    """A file that this machine has no room for is the machine's fault, not the layer's, and leaves nothing."""
    large = layer(store, file("a", b"1"), file("b", os.urandom(1 << 20)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, hard))
    try:
        with pytest.raises(HostError, match="cannot be unpacked: File too large") as caught:
            rootfs.unpack(home, store, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.where == str(home.rootfs)
    assert leftovers(home) == []
    assert (rootfs.unpack(home, store, large) / "b").stat().st_size == 1 << 20


KILLED = """
import json, os, signal, sys
from pathlib import Path
from torchkiln import rootfs
from torchkiln.home import Home
from torchkiln.oci.image import Layer
from torchkiln.oci.store import Store

def written(handle, data, write=os.write, count=[]):
    count.append(1)
    if len(count) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(handle, data)

os.write = written
home = Home(Path(sys.argv[1]))
rootfs.unpack(home, Store(home.store), Layer.from_json(json.loads(sys.argv[2])))
"""


def test_killed(home: Home, store: Store) -> None:
    """An unpacking that is killed within a file leaves nothing that would be taken for a layer, and no lock."""
    whole = layer(store, file("a", b"1"), file("b", b"2" * (1 << 20)))
    command = [sys.executable, "-c", KILLED, str(home.root), json.dumps(whole.to_json())]
    assert subprocess.run(command, check=False, cwd=ROOT).returncode == -signal.SIGKILL
    (left,) = leftovers(home)
    assert 0 < (left / "tree/b").stat().st_size < 1 << 20
    assert not list((home.rootfs / "layers-2").iterdir())
    assert (rootfs.unpack(home, store, whole) / "b").stat().st_size == 1 << 20
