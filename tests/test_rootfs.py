from __future__ import annotations

import os
import stat
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests import rawlayers
from tests.rawlayers import MOMENT, Member, file, folder, hard_link, layer, symlink
from torchkiln import rootfs
from torchkiln.errors import ImageError
from torchkiln.oci import digest as digests
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from torchkiln.home import Home

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="owners and capabilities need root")


@pytest.fixture
def store(home: Home) -> Store:
    """The store of the test's own home."""
    return Store(home.store)


def listing(tree: Path) -> dict[str, str]:
    """Every path of a tree with its content, its target, or `/`."""
    found = {}
    for path in sorted(tree.rglob("*")):
        name = str(path.relative_to(tree))
        found[name] = str(path.readlink()) if path.is_symlink() else "/" if path.is_dir() else path.read_text()
    return found


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
    assert not list((home.rootfs / "layers").iterdir())


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


def test_merge(home: Home, store: Store) -> None:
    """Higher layers replace, hide by whiteout, and hide whole folders; files are shared, not copied."""
    low = layer(
        store, file("keep", b"1"), file("gone", b"2"), file("d/old", b"3"), file("full/a", b"4"), file("x", b"5")
    )
    high = layer(
        store,
        file(".wh.gone"),
        file("d/.wh..wh..opq"),
        file("d/new", b"6"),
        file(".wh.full"),
        folder("x"),
        file("x/y", b"7"),
        file("keep", b"8"),
        file(".wh.never", b""),
        file("none/.wh.never", b""),
    )
    tree = rootfs.merge(home, store, [low, high])
    assert listing(tree) == {"d": "/", "d/new": "6", "keep": "8", "none": "/", "x": "/", "x/y": "7"}
    assert (tree / "d/new").stat().st_ino == (rootfs.unpack(home, store, high) / "d/new").stat().st_ino
    assert listing(rootfs.merge(home, store, [high, low]))["gone"] == "2"


def test_merge_never_follows_links(home: Home, store: Store, tmp_path: Path) -> None:
    """A folder of a higher layer hides a lower link, as in overlayfs; whiteouts do not reach through one either."""
    (tmp_path / "precious").write_text("p")
    low = layer(store, symlink("lib", "usr/lib"), symlink("out", str(tmp_path)), file("usr/lib/a", b"1"))
    high = layer(store, file("lib/b", b"2"), file("out/.wh.precious"))
    assert listing(rootfs.merge(home, store, [low, high])) == {
        "lib": "/", "lib/b": "2", "out": "/", "usr": "/", "usr/lib": "/", "usr/lib/a": "1",
    }  # fmt: skip
    assert (tmp_path / "precious").read_text() == "p"


def test_folders_keep_what_a_layer_says_of_them(home: Home, store: Store) -> None:
    """A folder that a higher layer only passes through keeps mode and time; one that it describes gets new ones."""
    low = layer(store, folder("a", mode=0o700), folder("b", mode=0o700))
    high = layer(store, file("a/x"), folder("b", mode=0o711), file("b/x"))
    tree = rootfs.merge(home, store, [low, high])
    assert [stat.S_IMODE((tree / name).stat().st_mode) for name in "ab"] == [0o700, 0o711]
    assert {(tree / name).stat().st_mtime for name in "ab"} == {MOMENT}


def test_made_once(home: Home, store: Store) -> None:
    """A second call finds the same tree, without the blobs; one from before a reboot is made again."""
    stack = [layer(store, file("a", b"1")), layer(store, file("b", b"2"))]
    tree = rootfs.merge(home, store, stack)
    store.path(stack[0].descriptor.digest).rename(home.root / "aside")
    assert rootfs.merge(home, store, stack) == tree
    (tree.parent / "boot").write_text("another")
    (tree / "a").unlink()
    assert (rootfs.merge(home, store, stack) / "a").read_text() == "1"


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
