from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import rawlayers
from tests.rawlayers import MOMENT, Member, file, folder, hard_link, layer, listing, symlink
from torchkiln import home as homes
from torchkiln import rootfs
from torchkiln.errors import ImageError

if TYPE_CHECKING:
    from torchkiln.home import Home
    from torchkiln.oci.store import Store


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


def test_whiteouts_are_of_lower_layers_only(home: Home, store: Store) -> None:
    """Wherever they stand in their layer, they hide nothing of it (layer.md, Whiteouts), nor of a higher one."""
    low = layer(store, file("a/x", b"1"), file("b/x", b"1"), file("c", b"1"))
    middle = layer(
        store, file("a/new", b"2"), file("a/.wh..wh..opq"), file("b/x", b"2"), file("b/.wh.x"), file(".wh.c"), file("c")
    )
    high = layer(store, file("a/x", b"3"))
    assert listing(rootfs.merge(home, store, [low, middle])) == {
        "a": "/", "a/new": "2", "b": "/", "b/x": "2", "c": "",
    }  # fmt: skip
    assert listing(rootfs.merge(home, store, [low, middle, high]))["a/x"] == "3"
    assert listing(rootfs.merge(home, store, [middle, low]))["a/x"] == "1"


def test_whiteouts_never_follow_links(home: Home, store: Store, tmp_path: Path) -> None:
    """Neither of the root, nor of a folder, nor opaque ones: what a lower link leads to is not touched."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("p")
    low = layer(store, symlink("l", str(outside)), symlink("m", "d"), file("d/x", b"1"), symlink("d/up", "../.."))
    high = layer(
        store, file("l/.wh..wh..opq"), file("l/.wh.precious"), file("m/.wh.x"), file("d/up/.wh.outside"), file(".wh.m")
    )
    tree = rootfs.merge(home, store, [low, high])
    assert listing(tree) == {"d": "/", "d/up": "/", "d/x": "1", "l": "/", "m": "/"}
    assert (outside / "precious").read_text() == "p"


def test_a_folder_under_a_whiteout_is_another(home: Home, store: Store) -> None:
    """It takes nothing from the one that is gone, described or not; a removal leaves times as they are."""
    low = layer(store, folder("d", mode=0o711), folder("d/e", mode=0o711), folder("k", mode=0o711), file("k/x"))
    high = layer(store, file(".wh.d"), file("d/e/f"), file("k/.wh.x"))
    tree = rootfs.merge(home, store, [low, high])
    assert [stat.S_IMODE((tree / name).stat().st_mode) for name in ("d", "d/e", "k")] == [0o755, 0o755, 0o711]
    assert {(tree / name).stat().st_mtime for name in ("d", "d/e", "k")} == {MOMENT}


def test_devices_hide_what_is_below_them(home: Home, store: Store) -> None:
    """A device is left out, yet a lower file of its name is not seen."""
    low = layer(store, file("null", b"1"))
    high = layer(store, Member(name="null", kind=tarfile.CHRTYPE))
    assert listing(rootfs.merge(home, store, [low, high])) == {}


def test_hard_links_stay_together(home: Home, store: Store) -> None:
    """Names of one file are names of one file in the merged tree, but for those that a higher layer replaces."""
    low = layer(store, file("a", b"1"), hard_link("b", "a"), hard_link("c", "b"))
    tree = rootfs.merge(home, store, [low, layer(store, file("b", b"2"))])
    assert (tree / "a").stat().st_ino == (tree / "c").stat().st_ino != (tree / "b").stat().st_ino
    assert listing(tree) == {"a": "1", "b": "2", "c": "1"}


def test_any_number_of_workers(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time or all at once, a layer twice in the stack: the same tree, to the time of each entry."""
    stack = [
        layer(
            store,
            *(file(f"d{place}/{number}", bytes([place]) * 3000) for number in range(50)),
            file(f".wh.d{place - 2}"),
        )
        for place in range(12)
    ]
    stack.insert(5, stack[0])
    found = []
    for name, processors in (("serial", {0}), ("parallel", set(range(8)))):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, these=processors: these)
        tree = rootfs.merge(homes.prepare(homes.Home(tmp_path / name)), store, stack)
        found.append(rawlayers.snapshot(tree))
    assert found[0] == found[1]
    assert {name for name in found[0] if "/" not in name} == {".", "d0", "d10", "d11"}


ROOT = Path(__file__).parent.parent.parent
FEW = """
import json, os, resource, sys
from pathlib import Path
from torchkiln import rootfs
from torchkiln.home import Home
from torchkiln.oci.image import Layer
from torchkiln.oci.store import Store

os.sched_getaffinity = lambda _: range(16)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
home = Home(Path(sys.argv[3]))
rootfs.merge(home, Store(home.store), [Layer.from_json(one) for one in json.load(sys.stdin)])
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "hard"), [(600, 600), (256, 4096)])
def test_no_layer_is_too_deep_for_few_descriptors(home: Home, store: Store, soft: int, hard: int) -> None:
    """With little more than merging needs fewer unpack at once, to the same tree; what may be raised is raised."""
    deep = "/".join(["d"] * 198)
    stack = [layer(store, file(f"{number}/{deep}/f", bytes(32 << 20))) for number in range(2)]
    stack.append(layer(store, file(f"x/{deep}/f", b"1"), file("x", b"2")))
    given = json.dumps([one.to_json() for one in stack]).encode()
    command = [sys.executable, "-c", FEW, str(soft), str(hard), str(home.root)]
    done = subprocess.run(command, input=given, capture_output=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split() == [b"600" if hard == 600 else b"758", str(hard).encode()]
    (merged,) = (home.rootfs / "stacks-2").glob("*/tree")
    assert sorted(path.name for path in merged.iterdir()) == ["0", "1", "x"]
    assert (merged / "1" / deep / "f").stat().st_size == 32 << 20


def test_a_failure_is_of_its_layer(home: Home, store: Store) -> None:
    """One bad layer among good ones is named, and no tree is made; the good ones are kept for the next try."""
    good = [layer(store, file(str(number), b"1")) for number in range(4)]
    bad = layer(store, file("../out", b"1"))
    with pytest.raises(ImageError) as caught:
        rootfs.merge(home, store, [*good[:2], bad, *good[2:]])
    assert bad.descriptor.digest in caught.value.where
    assert list((home.rootfs / "stacks-2").iterdir()) == list(home.temporary.iterdir()) == []
    assert listing(rootfs.merge(home, store, good)) == {"0": "1", "1": "1", "2": "1", "3": "1"}
