"""Wheels become layers: the wheel format honoured, lies and unsafe names refused, bytes the same everywhere."""

from __future__ import annotations

import base64
import csv
import ctypes
import hashlib
import io
import os
import stat
import struct
import sys
import types
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.toys import SITE, make_wheel, pin, record_line, spec, unpacked
from torchkiln import process
from torchkiln.errors import ConflictError, HostError, LayerMismatchError, WheelError
from torchkiln.layers import environment, members, wheel, zlibs
from torchkiln.oci.store import Store
from torchkiln.specs import EnvironmentSpec

if TYPE_CHECKING:
    from torchkiln.oci.image import Layer

DEEP = "toy/" + "d" * 60 + "/"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "store")


def build(store: Store, *paths: Path) -> Layer:
    """The layer of these wheels together."""
    return wheel.build(store, *spec(*paths))


def files(store: Store, *paths: Path) -> dict[str, bytes]:
    """Content of every file in the layer of these wheels."""
    return {name: data for name, (entry, data) in unpacked(store, build(store, *paths)).items() if entry.isfile()}


def refused(store: Store, path: Path, what: str) -> None:
    """The wheel is refused with its name and that reason, and the store stays empty."""
    with pytest.raises(WheelError, match=what) as caught:
        build(store, path)
    assert path.name in str(caught.value)
    assert caught.value.remedy
    assert not store.blobs.exists() or list(store.blobs.iterdir()) == []


def patched(path: Path, old: bytes, new: bytes, count: int = -1) -> Path:
    """The wheel with some bytes replaced by as many others."""
    assert len(old) == len(new)
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, count))
    return path


# What a wheel becomes.


def test_a_plain_wheel(store: Store, tmp_path: Path) -> None:
    """Files lie in site-packages, directories 0775, files 0664: group 0 may write; INSTALLER and RECORD are ours."""
    found = unpacked(store, build(store, make_wheel(tmp_path)))
    assert {name for name, (entry, _) in found.items() if entry.isfile()} == {
        f"{SITE}/toy/__init__.py",
        f"{SITE}/toy-1.0.dist-info/INSTALLER",
        f"{SITE}/toy-1.0.dist-info/METADATA",
        f"{SITE}/toy-1.0.dist-info/RECORD",
        f"{SITE}/toy-1.0.dist-info/WHEEL",
    }
    assert found[f"{SITE}/toy-1.0.dist-info/INSTALLER"][1] == b"torchkiln\n"
    for name, (entry, _) in found.items():
        expected = 0o664 if entry.isfile() else 0o755 if name == "opt" else 0o775
        assert entry.mode == expected, name
        assert (entry.uid, entry.gid) == (0, 0)


def test_record_lists_what_is_there(store: Store, tmp_path: Path) -> None:
    """Every file with its true hash and size, scripts and data by relative path, no .data path, itself bare."""
    path = make_wheel(
        tmp_path,
        files={
            "toy/__init__.py": "",
            "toy/a, b.txt": "comma",
            "{data}/scripts/run": "#!python\nprint(1)\n",
            "{data}/data/share/man/toy.1": "man",
        },
        entry_points="[console_scripts]\ntoy = toy:main\n",
    )
    found = unpacked(store, build(store, path))
    rows = list(csv.reader(io.StringIO(found[f"{SITE}/toy-1.0.dist-info/RECORD"][1].decode())))
    listed = {os.path.normpath(f"{SITE}/{name}"): (value, size) for name, value, size in rows}
    assert set(listed) == {name for name, (entry, _) in found.items() if entry.isfile()}
    assert listed.pop(f"{SITE}/toy-1.0.dist-info/RECORD") == ("", "")
    for name, (value, size) in listed.items():
        assert record_line("x", found[name][1]) == f"x,{value},{size}", name
    outside = sorted(name for name, _, _ in rows if name.startswith(".."))
    assert outside == ["../../../bin/run", "../../../bin/toy", "../../../share/man/toy.1"]


def test_data_folders_and_scripts(store: Store, tmp_path: Path) -> None:
    """build-wheel-data-scripts: each scheme has its place; scripts get the interpreter and the exec bit."""
    path = make_wheel(
        tmp_path,
        files={
            "{data}/purelib/pure.py": "p",
            "{data}/platlib/plat.py": "q",
            "{data}/scripts/run": b"#!python\r\nimport toy\r\n",
            "{data}/scripts/runw": b"#!pythonw -x\nimport toy\n",
            "{data}/scripts/shell": "#!/bin/sh\n",
            "{data}/scripts/binary": b"\x7fELF#!python",
            "{data}/data/share/toy.txt": "s",
            "{data}/data/bin/tool": "#!/bin/sh\n",
            "{data}/headers/toy.h": "h",
        },
    )
    found = unpacked(store, build(store, path))
    assert found[f"{SITE}/pure.py"][1] == b"p"
    assert found[f"{SITE}/plat.py"][1] == b"q"
    assert found["opt/venv/share/toy.txt"][1] == b"s"
    assert found["opt/venv/include/site/python/toy/toy.h"][1] == b"h"
    assert found["opt/venv/bin/run"][1] == b"#!/opt/venv/bin/python\nimport toy\r\n"
    assert found["opt/venv/bin/runw"][1] == b"#!/opt/venv/bin/python\nimport toy\n"
    assert found["opt/venv/bin/shell"][1] == b"#!/bin/sh\n"
    assert found["opt/venv/bin/binary"][1] == b"\x7fELF#!python"
    scripts = [entry for name, (entry, _) in found.items() if name.startswith("opt/venv/bin/")]
    assert len(scripts) == 5
    assert {entry.mode for entry in scripts} == {0o775}


def test_entry_points_run(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Console and GUI commands call their function and exit with what it returns; extras play no part."""
    path = make_wheel(
        tmp_path,
        files={"toy/__init__.py": "class Tool:\n    @staticmethod\n    def main():\n        return 7\n"},
        entry_points="[console_scripts]\ntoy-run = toy:Tool.main\nOther = toy : Tool.main [extra, more]\n"
        "[gui_scripts]\ntoy-gui = toy:Tool.main\n[toy.plugins]\nx = no such thing!\n",
    )
    found = unpacked(store, build(store, path))
    commands = {name for name in found if name.startswith("opt/venv/bin/")}
    assert commands == {"opt/venv/bin/toy-run", "opt/venv/bin/Other", "opt/venv/bin/toy-gui"}
    assert len({found[command][1] for command in commands}) == 1
    script = found["opt/venv/bin/toy-run"][1]
    assert script.startswith(b"#!/opt/venv/bin/python\n")
    package = types.ModuleType("toy")
    exec(found[f"{SITE}/toy/__init__.py"][1], vars(package))  # noqa: S102  the package is this test's own
    monkeypatch.setitem(sys.modules, "toy", package)
    with pytest.raises(SystemExit, match="7"):
        exec(compile(script, "toy-run", "exec"), {"__name__": "__main__"})  # noqa: S102  the script is what is tested


def test_an_entry_point_replaces_the_script_that_wraps_it(store: Store, tmp_path: Path) -> None:
    """As with pip: old wheels ship both."""
    path = make_wheel(
        tmp_path,
        files={"toy/__init__.py": "", "{data}/scripts/toy": "#!python\nold\n", "{data}/scripts/toy-script.py": "old"},
        entry_points="[console_scripts]\ntoy = toy:main\n",
    )
    found = files(store, path)
    assert b"old" not in found["opt/venv/bin/toy"]
    assert "opt/venv/bin/toy-script.py" not in found


def test_executable_bits(store: Store, tmp_path: Path) -> None:
    """Any x bit gives 0775, everything else 0664."""
    path = make_wheel(tmp_path, files={"toy/tool": "x", "toy/data": "y"}, executable=["toy/tool"])
    found = unpacked(store, build(store, path))
    assert found[f"{SITE}/toy/tool"][0].mode == 0o775
    assert found[f"{SITE}/toy/data"][0].mode == 0o664


@pytest.mark.parametrize("length", [99, 100, 101, 155, 156, 255, 256, 300])
def test_member_paths_of_any_length(store: Store, tmp_path: Path, length: int) -> None:
    """build-long-paths, counted in the wheel."""
    name = (DEEP * 5)[: length - 1].rstrip("/").ljust(length, "y")
    assert files(store, make_wheel(tmp_path, files={name: "deep"}))[f"{SITE}/{name}"] == b"deep"


def test_names_outside_ascii(store: Store, tmp_path: Path) -> None:
    """UTF-8 names keep their bytes."""
    names = {"toy/é.py": "1", "toy/日本語.txt": "2", "toy/😀": "3"}
    assert {f"{SITE}/{name}" for name in names} <= files(store, make_wheel(tmp_path, files=names)).keys()


def test_stored_streamed_and_empty_members(store: Store, tmp_path: Path) -> None:
    """Stored members are compressed; sizes may follow the data (bit 3); empty files stay empty."""
    content = {"toy/stored": b"s" * 3_000_000, "toy/deflated": b"d" * 3_000_000, "toy/empty": b"", "toy/none": b""}
    plain = files(store, make_wheel(tmp_path / "a", files=content, stored=["toy/stored", "toy/none"]))
    streamed = make_wheel(tmp_path / "b", files=content, stored=["toy/stored", "toy/none"], streamed=True)
    assert all(entry.flag_bits & 8 for entry in zipfile.ZipFile(streamed).infolist())
    assert files(store, streamed) == plain
    for name, data in content.items():
        assert plain[f"{SITE}/{name}"] == data


def test_zip64(store: Store, tmp_path: Path) -> None:
    """Sizes in the zip64 extra field, as streaming writers put them."""
    path = make_wheel(tmp_path)
    original = {entry.filename: zipfile.ZipFile(path).read(entry) for entry in zipfile.ZipFile(path).infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in original.items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(data)
    assert b"\x01\x00\x10\x00" in path.read_bytes()
    assert files(store, path)[f"{SITE}/toy/__init__.py"] == b"answer = 42\n"


def test_directory_entries_of_the_zip_are_not_needed(store: Store, tmp_path: Path) -> None:
    """They neither appear twice nor count as files that RECORD forgot."""
    path = make_wheel(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo("toy/"), b"")
        archive.writestr(zipfile.ZipInfo("empty/"), b"")
    assert f"{SITE}/empty" not in unpacked(store, build(store, path))


@pytest.mark.parametrize("interpreter", ["/usr/bin/python3", "/usr/local/bin/python3"])
def test_no_wheel_writes_what_the_environment_writes(store: Store, tmp_path: Path, interpreter: str) -> None:
    """Its layer lies above theirs, so whatever is there twice would be another file than the wheel's RECORD says."""
    ours = environment.entries(EnvironmentSpec(python="3.11", protected=("torch==2.5.1",), interpreter=interpreter))
    paths = [entry.path.removeprefix("opt/venv/") for entry, _ in ours if entry.path.startswith("opt/venv/")]
    assert {"bin", "bin/python3.11", "constraints.txt", "lib64"} <= set(paths)
    for number, path in enumerate(paths):
        files = {f"{{data}}/data/{path}": "theirs"}
        refused(store, make_wheel(tmp_path / str(number), files=files), "belongs to the environment|file and a folder")


def test_the_order_of_members_plays_no_part(store: Store, tmp_path: Path) -> None:
    """Of two wheels that hold the same in another order, RECORD too, the layer is the same."""
    files = {"toy/b.py": "b = 1\n", "toy/a/c.py": "c = 1\n", "toy/__init__.py": "", "toy/a.py": "a = 1\n"}
    one = build(store, make_wheel(tmp_path / "one", files=files))
    other = build(store, make_wheel(tmp_path / "other", files=dict(reversed(files.items()))))
    assert other == one


def test_layer_growth_is_small(store: Store, tmp_path: Path) -> None:
    """Streams are copied: a layer is as large as its wheel but for headers."""
    noise = os.urandom(1 << 20)
    path = make_wheel(tmp_path, files={"toy/noise": noise})
    assert abs(build(store, path).descriptor.size - path.stat().st_size) < 2000


# The same bytes everywhere.


def golden_wheel() -> Path:
    """A wheel with one of everything, kept as a file, since another zlib would compress it differently."""
    return Path(__file__).parent.parent / "golden" / "golden-1.0-py3-none-any.whl"


def test_golden_digest(store: Store) -> None:
    """The bytes of a wheel's layer never change silently: a change here needs a new WheelSpec.FORMAT."""
    layer = build(store, golden_wheel())
    assert layer.diff_id == "sha256:0b90abe84b2d38a69b1dc3d26ba4828eac6b3a6d017c39dee561ebc3c43fc7da"
    assert layer.descriptor.digest == "sha256:795353cacbdb1483251198281684c17b31093f058e5149bb951ac694e1f652c0"


PROGRAM = """
import sys
sys.path[:0] = ["."]
from pathlib import Path
from tests.toys import spec
from torchkiln.layers import inflate, wheel, zlibs
from torchkiln.oci.store import Store
if sys.argv[3] == "system":
    inflate.fastest = zlibs.zlib_system
print(wheel.build(Store(Path(sys.argv[2])), *spec(Path(sys.argv[1]))).descriptor.digest)
"""


@pytest.mark.parametrize(
    ("umask", "zone", "seed", "library", "folder"),
    [
        (0o077, "Pacific/Kiritimati", "1", "next", "/"),
        (0o000, "America/Anchorage", "2", "system", "/tmp"),
    ],
)
def test_another_host_gives_the_same_digest(  # noqa: PLR0917  one test, many hosts
    store: Store, tmp_path: Path, umask: int, zone: str, seed: str, library: str, folder: str
) -> None:
    """build-digest-not-reproducible: umask, zone, locale, hash seed, zlib and folder change nothing."""
    path = golden_wheel()
    env = {"TZ": zone, "PYTHONHASHSEED": seed, "LC_ALL": "C", "TMPDIR": folder, "PATH": os.environ["PATH"]}
    before = os.umask(umask)
    try:
        other = process.run([sys.executable, "-c", PROGRAM, str(path), str(tmp_path / "other"), library], env=env)
    finally:
        os.umask(before)
    assert other.stdout.decode().strip() == build(store, path).descriptor.digest, other.stderr.decode()
    blob = next((tmp_path / "other" / "blobs" / "sha256").iterdir())
    assert stat.S_IMODE(blob.stat().st_mode) == 0o644


# Lies and damage.


def test_a_truncated_wheel(store: Store, tmp_path: Path) -> None:
    """build-truncated-or-corrupt-download: it says that the file is cut off or damaged."""
    path = make_wheel(tmp_path, files={"toy/noise": os.urandom(5000)})
    path.write_bytes(path.read_bytes()[:-400])
    refused(store, path, "not a whole zip file")
    path.write_bytes(b"")
    refused(store, path, "not a whole zip file")


def test_a_wheel_cut_in_the_middle(store: Store, tmp_path: Path) -> None:
    """With a directory that promises more than there is, too."""
    path = make_wheel(tmp_path, files={"toy/noise": os.urandom(50000)})
    data = path.read_bytes()
    path.write_bytes(data[:20000] + data[30000:])
    with pytest.raises(WheelError):
        build(store, path)


@pytest.mark.parametrize("stored", [True, False])
def test_a_zeroed_member(store: Store, tmp_path: Path, stored: bool) -> None:  # noqa: FBT001  a parameter
    """One member zeroed: named, with what was expected and what was found."""
    noise = os.urandom(50000)
    path = make_wheel(tmp_path, files={"toy/noise": noise}, stored=["toy/noise"] if stored else [])
    patched(path, noise[1000:3000], bytes(2000))
    refused(store, path, "toy/noise: expected CRC-32 [0-9a-f]{8} by the zip, found [0-9a-f]{8}")


def test_a_damaged_stream(store: Store, tmp_path: Path) -> None:
    """Bytes that are no deflate stream."""
    text = b"".join(b"%d\n" % number for number in range(20000))
    path = make_wheel(tmp_path, files={"toy/text": text})
    data = bytearray(path.read_bytes())
    data[2000:4000] = b"\xff" * 2000
    path.write_bytes(data)
    refused(store, path, "toy/text (is damaged|is cut off|is followed|inflates)")


def test_record_with_another_hash(store: Store, tmp_path: Path) -> None:
    """RECORD disagrees: wheel, member, expected and actual are named."""
    wrong = record_line("toy/__init__.py", b"other").replace(",5", ",12")
    path = make_wheel(tmp_path, claims={"toy/__init__.py": wrong})
    refused(store, path, r"toy/__init__.py: expected sha256=\S+ by RECORD, found sha256=")


def test_record_with_another_hash_of_a_script(store: Store, tmp_path: Path) -> None:
    """A script that is rewritten was checked before."""
    path = make_wheel(
        tmp_path,
        files={"{data}/scripts/run": "#!python\n"},
        claims={"toy-1.0.data/scripts/run": record_line("toy-1.0.data/scripts/run", b"#!python ")},
    )
    refused(store, path, r"scripts/run: expected sha256=\S+ by RECORD, found sha256=")


@pytest.mark.parametrize(
    ("claims", "what"),
    [
        ({"toy/__init__.py": None}, "toy/__init__.py is not listed"),
        ({"toy/ghost.py": record_line("toy/ghost.py", b"")}, "toy/ghost.py is listed, but not in the wheel"),
        ({"toy/__init__.py": record_line("toy/__init__.py", b"answer = 42\n") + "3"}, "expected 123 bytes"),
        ({"toy/__init__.py": "toy/__init__.py,,"}, "without a sha256 or better"),
        ({"toy/__init__.py": "toy/__init__.py,md5=abc,12"}, "without a sha256 or better"),
        ({"again": record_line("toy/__init__.py", b"answer = 42\n")}, "toy/__init__.py is listed twice"),
        ({"again": '"unclosed'}, "RECORD is not CSV"),
    ],
)
def test_record_and_content_disagree(store: Store, tmp_path: Path, claims: dict[str, str | None], what: str) -> None:
    """A file missing on either side, a wrong size, a weak hash: refused before anything is copied."""
    refused(store, make_wheel(tmp_path, claims=claims), what)


def test_stronger_hashes_and_signatures(store: Store, tmp_path: Path) -> None:
    """RECORD may use sha512, and does not list its own signature."""
    value = base64.urlsafe_b64encode(hashlib.sha512(b"answer = 42\n").digest()).rstrip(b"=").decode()
    path = make_wheel(
        tmp_path,
        files={"toy/__init__.py": "answer = 42\n", "{info}/RECORD.jws": "{}"},
        claims={"toy/__init__.py": f"toy/__init__.py,sha512={value},12", "{info}/RECORD.jws": None},
    )
    assert f"toy/__init__.py,sha512={value},12" in files(store, path)[f"{SITE}/toy-1.0.dist-info/RECORD"].decode()
    other = make_wheel(tmp_path / "b", claims={"toy/__init__.py": f"toy/__init__.py,sha512={'A' * len(value)},12"})
    with pytest.raises(WheelError, match="expected sha512=AAA"):
        build(store, other)


def _central(path: Path, name: bytes, offset: int, form: str, value: int) -> None:
    """Change a field of a member's entry in the central directory."""
    data = bytearray(path.read_bytes())
    place = data.rindex(b"PK\1\2", 0, data.rindex(name))
    struct.pack_into(form, data, place + offset, value)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("offset", "form", "value", "what"),
    [
        (16, "<L", 1234, "differ"),
        (24, "<L", 11, "(differ|expected 12 bytes)"),
        (20, "<L", 5, "differ"),
        (10, "<H", 0, "(differ|is stored in 14 bytes)"),
        (42, "<L", 0, "(differ|overlap|damaged)"),
        (8, "<H", 1, "is encrypted"),
        (10, "<H", 93, "compression method 93"),
        (10, "<H", 12, "compression method 12"),
        (10, "<H", 14, "compression method 14"),
    ],
)
def test_a_directory_that_lies(  # noqa: PLR0917  pytest passes by name
    store: Store, tmp_path: Path, offset: int, form: str, value: int, what: str
) -> None:
    """CRC, size, method or place in the directory differ from the local header; encryption; other methods."""
    path = make_wheel(tmp_path, files={"aa/first.py": "first", "toy/__init__.py": "answer = 42\n"})
    _central(path, b"toy/__init__.py", offset, form, value)
    with pytest.raises(WheelError, match=what):
        build(store, path)


def test_headers_that_lie_together(store: Store, tmp_path: Path) -> None:
    """A CRC or size that is wrong in both places is found by inflating."""
    path = make_wheel(tmp_path, claims={"toy/__init__.py": record_line("toy/__init__.py", b"answer = 42\n")[:-3]})
    crc = struct.pack("<L", zipfile.ZipFile(path).getinfo("toy/__init__.py").CRC)
    patched(path, crc, b"\1\2\3\4")
    refused(store, path, "expected CRC-32 04030201 by the zip")


def test_a_size_that_lies_together(store: Store, tmp_path: Path) -> None:
    """Smaller than the data: copying stops there."""
    path = make_wheel(tmp_path, files={"toy/z": bytes(70001)}, claims={"toy/z": record_line("toy/z", b"")[:-2]})
    patched(path, struct.pack("<L", 70001), struct.pack("<L", 70000))
    refused(store, path, "toy/z inflates to more than the stated 70000 bytes")


# Unsafe names.


@pytest.mark.parametrize(
    "name",
    [
        "/absolute",
        "../x",
        "toy/../../x",
        "toy/..",
        "..",
        "toy//x",
        "./toy",
        "toy/./x",
        "toy\\x",
        ".wh.toy",
        "toy/.wh..wh..opq",
        "toy/" + "n" * 256,
    ],
)
def test_unsafe_names(store: Store, tmp_path: Path, name: str) -> None:
    """Absolute, upward, empty, backslash, whiteout, or too long for any file system."""
    refused(store, make_wheel(tmp_path, files={"toy/__init__.py": "", name: "x"}), "unsafe name")


def test_a_name_with_nul(store: Store, tmp_path: Path) -> None:
    """Python's zipfile cuts such a name; it is refused instead."""
    path = make_wheel(tmp_path, files={"toy/__init__.py": "", "toy/evil.pyXjpg": "x"})
    refused(store, patched(path, b"evil.pyXjpg", b"evil.py\0jpg"), "unsafe name")


def test_a_second_name(store: Store, tmp_path: Path) -> None:
    """Some Pythons take the name in Info-ZIP's extra field, others the one before it: no layer depends on that."""
    path = make_wheel(tmp_path, files={"toy/__init__.py": ""})
    name = b"toy/\xc3\xa9.py"
    extra = struct.pack("<HHBL", 0x7075, 5 + len(name), 1, zlib.crc32(b"toy/e.py")) + name
    with zipfile.ZipFile(path, "a") as archive:
        entry = zipfile.ZipInfo("toy/e.py")
        entry.extra = struct.pack("<HH4s", 0x9999, 4, b"else") + extra
        archive.writestr(entry, b"")
    refused(store, path, r"'toy/e\.py' has a second name")


def test_a_directory_of_any_size_is_not_read(store: Store, tmp_path: Path) -> None:
    """A zip says itself how large its directory is: what no wheel needs would be held in memory whole."""
    path = make_wheel(tmp_path, files={"toy/__init__.py": ""})
    size = members.MOST_DIRECTORY + 1
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + size)
        file.seek(0, os.SEEK_END)
        file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, size, file.tell() - size, 0))
    refused(store, path, f"its directory has {size} bytes")


def test_a_symlink_member(store: Store, tmp_path: Path) -> None:
    """Wheels hold no links."""
    path = make_wheel(tmp_path, files={"toy/__init__.py": "", "toy/link": "/etc/passwd"})
    _central(path, b"toy/link", 38, "<L", (stat.S_IFLNK | 0o777) << 16)
    refused(store, path, "toy/link is a link")


def test_duplicate_members(store: Store, tmp_path: Path) -> None:
    """Readers disagree on which of two counts, so neither does."""
    path = make_wheel(tmp_path, files={"toy/__init__.py": "", "toy/a.py": "1", "toy/b.py": "2"})
    refused(store, patched(path, b"toy/b.py", b"toy/a.py"), "two members are called 'toy/a.py'")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"toy.py": "1", "{data}/purelib/toy.py": "2"}, "writes /opt/venv/lib/python/site-packages/toy.py twice"),
        ({"{data}/data/bin/x": "1", "{data}/scripts/x": "2"}, "writes /opt/venv/bin/x twice"),
        ({"{data}/data/lib/python/site-packages/y": "1", "y": "2"}, "site-packages/y twice"),
        ({"{data}/purelib/a": "1", "a/b": "2"}, "site-packages/a is a file and a folder"),
        ({"{data}/nonsense/x": "1"}, "unknown scheme 'nonsense'"),
        ({"{data}/scripts": "1"}, "unknown scheme 'scripts'"),
        ({"{data}/scripts/python": "1"}, "belongs to the environment"),
        ({"{data}/scripts/python3": "1"}, "belongs to the environment"),
        ({"{data}/scripts/python3.11": "1"}, "belongs to the environment"),
        ({"{data}/data/bin/python3.13t": "1"}, "belongs to the environment"),
        ({"{data}/data/pyvenv.cfg": "1"}, "belongs to the environment"),
        ({"{data}/data/pip.conf": "1"}, "belongs to the environment"),
        ({"{data}/data/constraints.txt": "1"}, "belongs to the environment"),
        ({"{data}/data/bin": "1"}, "belongs to the environment"),
        ({"torchkiln_startup.pth": "1"}, "belongs to the environment"),
        ({"{data}/data/lib64/x": "1"}, "belongs to the environment"),
        ({"{data}/data/lib/python3.11/site-packages/x": "1"}, "belongs to the environment"),
    ],
)
def test_where_files_may_not_go(store: Store, tmp_path: Path, content: dict[str, str], what: str) -> None:
    """Twice to one path after .data is spread, over the interpreter, or through the environment's symlinks."""
    refused(store, make_wheel(tmp_path, files={"toy/__init__.py": "", **content}), what)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[console_scripts]\nx = toy\n", "names no callable"),
        ("[console_scripts]\nx = toy:a-b\n", "names no callable"),
        ("[console_scripts]\nx = toy:main;import os\n", "names no callable"),
        ("[console_scripts]\n../x = toy:main\n", "names no callable"),
        ("[console_scripts]\n.. = toy:main\n", "no name for a command"),
        ("[console_scripts]\npython3 = toy:main\n", "belongs to the environment"),
        ("[console_scripts]\nx = toy:main\nx = toy:other\n", "entry_points.txt cannot be read"),
        ("[console_scripts]\nx = toy:main\n[gui_scripts]\nx = toy:other\n", "two entry points are called x"),
        ("no section\n", "entry_points.txt cannot be read"),
    ],
)
def test_entry_points_that_make_no_command(store: Store, tmp_path: Path, text: str, what: str) -> None:
    """Nothing from a wheel is written into a script but identifiers."""
    refused(store, make_wheel(tmp_path, entry_points=text), what)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Wheel-Version: 2.0\nRoot-Is-Purelib: true\n", "Wheel-Version is '2.0'"),
        ("Root-Is-Purelib: true\n", "Wheel-Version is ''"),
        ("Wheel-Version: 1.0\n", "does not say whether Root-Is-Purelib"),
        ("Wheel-Version: 1.0\nRoot-Is-Purelib: maybe\n", "does not say whether Root-Is-Purelib"),
    ],
)
def test_the_wheel_format_is_checked(store: Store, tmp_path: Path, text: str, what: str) -> None:
    """Only version 1 is understood."""
    refused(store, make_wheel(tmp_path, wheel=text), what)


def test_a_later_minor_of_the_format_is_accepted(store: Store, tmp_path: Path) -> None:
    """As the specification asks."""
    text = "Wheel-Version: 1.9\nRoot-Is-Purelib: false\n"
    assert files(store, make_wheel(tmp_path, wheel=text))[f"{SITE}/toy/__init__.py"] == b"answer = 42\n"


def test_metadata_folders(store: Store, tmp_path: Path) -> None:
    """One .dist-info, whole, and of the distribution that the file is called after."""
    two = make_wheel(tmp_path / "a", files={"other-1.dist-info/METADATA": "x"})
    refused(store, two, "needs one .dist-info folder")
    other = make_wheel(tmp_path / "b")
    refused(
        store, other.rename(other.with_name("other-1.0-py3-none-any.whl")), "the file is called other but holds toy"
    )
    with zipfile.ZipFile(tmp_path / "none-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("none/__init__.py", "")
    refused(store, tmp_path / "none-1.0-py3-none-any.whl", "needs one .dist-info folder")
    bare = tmp_path / "bare-1.0-py3-none-any.whl"
    with zipfile.ZipFile(bare, "w") as archive:
        archive.writestr("bare-1.0.dist-info/METADATA", "")
    refused(store, bare, "bare-1.0.dist-info/WHEEL is missing")


# Several wheels.


def clash(tmp_path: Path, first: str, second: str) -> list[Path]:
    """Two wheels that share cv2/__init__.py."""
    return [
        make_wheel(tmp_path, name="one", files={"cv2/__init__.py": first, "one.py": ""}),
        make_wheel(tmp_path, name="two", files={"cv2/__init__.py": second, "two.py": ""}),
    ]


def test_equal_copies_pass(store: Store, tmp_path: Path) -> None:
    """build-wheels-share-a-path, pair A: one copy, whatever the order."""
    one, two = clash(tmp_path, "", "")
    wheel.check_conflicts({pin(one): one, pin(two): two})
    assert build(store, one, two).descriptor == build(store, two, one).descriptor
    found = unpacked(store, build(store, one, two))
    assert {f"{SITE}/cv2/__init__.py", f"{SITE}/one.py", f"{SITE}/two.py"} <= found.keys()


def test_different_content_is_an_error_naming_both(store: Store, tmp_path: Path) -> None:
    """build-wheels-share-a-path, pair B: path and both wheels, whatever the order."""
    one, two = clash(tmp_path, "1", "2")
    messages = set()
    for pair in ((one, two), (two, one)):
        with pytest.raises(ConflictError) as caught:
            wheel.check_conflicts({pin(path): path for path in pair})
        messages.add(str(caught.value))
        with pytest.raises(ConflictError):
            build(store, *pair)
    (message,) = messages
    assert f"/{SITE}/cv2/__init__.py by one-1.0-py3-none-any.whl and two-1.0-py3-none-any.whl" in message


def test_clashing_scripts_are_found_too(tmp_path: Path) -> None:
    """Two entry points of one name."""
    one = make_wheel(tmp_path, name="one", entry_points="[console_scripts]\nrun = one:main\n")
    two = make_wheel(tmp_path, name="two", entry_points="[console_scripts]\nrun = two:main\n")
    with pytest.raises(ConflictError, match=r"/opt/venv/bin/run by one-1.0-py3-none-any.whl and two-1.0"):
        wheel.check_conflicts({pin(one): one, pin(two): two})


def test_a_file_of_one_is_a_folder_of_the_other(tmp_path: Path) -> None:
    """Neither can be unpacked over the other."""
    one = make_wheel(tmp_path, name="one", files={"shared": "a file"})
    two = make_wheel(tmp_path, name="two", files={"shared/x": "a folder"})
    with pytest.raises(ConflictError, match=r"shared by one-1.0-py3-none-any.whl, a folder of two-1.0"):
        wheel.check_conflicts({pin(one): one, pin(two): two})


def test_one_distribution_twice(tmp_path: Path) -> None:
    """Two versions of one name never live together."""
    one = make_wheel(tmp_path, version="1.0", files={"a.py": ""})
    two = make_wheel(tmp_path, version="2.0", files={"b.py": ""})
    with pytest.raises(ConflictError, match=r"toy by toy-1.0-py3-none-any.whl and toy-2.0"):
        wheel.check_conflicts({pin(one): one, pin(two): two})


def test_contents_are_what_the_layer_holds(store: Store) -> None:
    """Paths and hashes, without building."""
    path = golden_wheel()
    found = files(store, path)
    stated = wheel.contents(path)
    assert stated.keys() == found.keys()
    for name, data in found.items():
        assert record_line("x", data) == f"x,{stated[name]},{len(data)}"


def test_a_wheel_under_another_name(store: Store, tmp_path: Path) -> None:
    """The lock's name and the wheel's must agree."""
    path = make_wheel(tmp_path)
    made, paths = spec(path)
    lying = replace(made, pins=(replace(made.pins[0], name="torch"),))
    with pytest.raises(WheelError, match=r"holds toy, the lock says torch"):
        wheel.build(store, lying, paths)


# In parallel.


def test_build_all_equals_one_by_one(store: Store, tmp_path: Path) -> None:
    """Layers come in the order of the specs, each is announced once, and workers change no byte."""
    paths = [make_wheel(tmp_path, name=f"toy{number}", files={f"m{number}.py": "x" * number}) for number in range(6)]
    specs = [spec(path) for path in paths]
    by_hash = {sha256: path for _, found in specs for sha256, path in found.items()}
    heard: list[str] = []
    layers = wheel.build_all(
        store, [one for one, _ in specs], by_hash, lambda one, _layer: heard.append(one.title), workers=3
    )
    assert layers == tuple(wheel.build(Store(tmp_path / "other"), one, found) for one, found in specs)
    assert sorted(heard) == [f"toy{number} 1.0" for number in range(6)]


def test_an_error_crosses_from_a_worker_whole(store: Store, tmp_path: Path) -> None:
    """With its three parts; nothing partial is left."""
    good = make_wheel(tmp_path, name="good")
    bad = make_wheel(tmp_path, name="bad", claims={"bad/__init__.py": None})
    (one, first), (two, second) = spec(good), spec(bad)
    with pytest.raises(WheelError, match=r"bad/__init__.py is not listed") as caught:
        wheel.build_all(store, [one, two], first | second, workers=2)
    assert caught.value.where
    assert caught.value.remedy
    assert not list(store.blobs.glob(".partial-*"))


def test_no_zlib_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without zlib-ng's functions and without libz.so.1 the remedy is named."""

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(HostError, match=r"libz\.so\.1 is missing"):
        zlibs.fastest()


def test_bytecode_that_a_wheel_ships_is_left_out(tmp_path: Path) -> None:
    """The bytecode layer writes these files; RECORD lists only what is there."""
    path = make_wheel(tmp_path, files={"toy.py": b"", "__pycache__/toy.cpython-311.pyc": b"stale"})
    written = wheel.contents(path)
    assert f"{SITE}/toy.py" in written
    assert not [name for name in written if "__pycache__" in name]


def test_what_a_wheel_asks_for_is_read_from_its_metadata(tmp_path: Path) -> None:
    """Each Requires-Dist line comes as one requirement; text below the headers is no header."""
    asked = ("numpy>=2", "triton==3.1.0; platform_system == 'Linux'")
    assert wheel.requirements(make_wheel(tmp_path, requires=asked)) == asked
    described = (*asked, "last\n\nRequires-Dist: prose")
    assert wheel.requirements(make_wheel(tmp_path, "other", requires=described)) == (*asked, "last")


def test_a_layer_that_is_not_the_known_one_is_an_error(store: Store, tmp_path: Path) -> None:
    """It names the layer, its wheels and both digests, and is not kept."""
    made, paths = spec(make_wheel(tmp_path))
    other = build(Store(tmp_path / "other"), make_wheel(tmp_path / "b", version="2.0"))
    with pytest.raises(
        LayerMismatchError, match=rf"toy 1\.0 .*digest sha256:\w+, expected {other.descriptor.digest};"
    ) as caught:
        wheel.build(store, made, paths, known=other)
    assert "toy-1.0-py3-none-any.whl" in caught.value.where
    assert list(store.blobs.iterdir()) == []


def test_a_known_layer_is_the_same_layer(store: Store, tmp_path: Path) -> None:
    """Alone and among many."""
    one, paths = spec(make_wheel(tmp_path))
    made = wheel.build(store, one, paths)
    assert wheel.build(Store(tmp_path / "b"), one, paths, known=made) == made
    assert wheel.build_all(Store(tmp_path / "c"), [one], paths, known={one.key: made}) == (made,)
