from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchkiln.errors import ImageError
from torchkiln.oci import tar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMATS = {tarfile.USTAR_FORMAT: 0o7777777, tarfile.GNU_FORMAT: 1 << 31, tarfile.PAX_FORMAT: 1 << 31}
"""And the largest owner that each can state."""
KINDS: Mapping[bytes, tar.Kind] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.CONTTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "link",
    tarfile.FIFOTYPE: "fifo",
    tarfile.CHRTYPE: "device",
}
END = bytes(2 * tar.BLOCK)
NAME = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


class Slow:
    """A stream that gives less than it is asked for."""

    def __init__(self, raw: bytes) -> None:
        self._raw = io.BytesIO(raw)

    def read(self, size: int, /) -> bytes:
        """Some bytes."""
        return self._raw.read(min(size, 700))


def read(raw: bytes) -> list[tuple[tar.Entry, bytes]]:
    """All entries with all content."""
    return [(entry, data.read() if data else b"") for entry, data in tar.entries(io.BytesIO(raw))]


def header(flag: bytes = b"0", name: bytes = b"x", **fields: bytes) -> bytes:
    """A header with a right checksum and any other field."""
    block = bytearray(tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT))
    block[:100], block[156:157] = name.ljust(100, b"\0"), flag
    places = {"mode": 100, "uid": 108, "gid": 116, "size": 124, "mtime": 136, "magic": 257, "prefix": 345}
    for field, value in fields.items():
        block[places[field] : places[field] + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def extended(flag: bytes, data: bytes) -> bytes:
    """An extended header."""
    return header(flag, size=b"%011o\0" % len(data)) + data + bytes(-len(data) % tar.BLOCK)


def pax(records: Mapping[bytes, bytes], flag: bytes = b"x") -> bytes:
    """A pax header."""
    found = b""
    for key, value in records.items():
        length = len(key) + len(value) + 3
        length += len(str(length + len(str(length))))
        found += b"%d %s=%s\n" % (length, key, value)
    return extended(flag, found)


def base256(value: int, size: int = 12) -> bytes:
    """A number as GNU tar writes those that octal digits can't hold."""
    return (value & ((1 << 8 * size) - 1) | 1 << 8 * size - 1).to_bytes(size, "big")


@st.composite
def infos(draw: st.DrawFn, largest: int) -> tuple[tarfile.TarInfo, bytes]:
    """Any entry, small or over more than one piece."""
    info = tarfile.TarInfo(draw(NAME).strip("/") or "x")
    info.type = draw(st.sampled_from(sorted(KINDS)))
    info.mode = draw(st.integers(0, 0o7777))
    info.uid, info.gid = draw(st.integers(0, largest)), draw(st.integers(0, largest))
    info.mtime = draw(st.integers(0, 1 << 32))
    info.linkname = draw(NAME) if info.issym() or info.islnk() else ""
    content = draw(st.binary(max_size=600)) * draw(st.sampled_from([1, 1, 1000])) if info.isreg() else b""
    info.size = len(content)
    return info, content


@given(data=st.data(), form=st.sampled_from(sorted(FORMATS)), slow=st.booleans())
def test_what_another_writes_comes_back(data: st.DataObject, form: int, slow: bool) -> None:  # noqa: FBT001
    """Names of any length and letters, owners, times, links, content: in all three formats, however it arrives."""
    buffer = io.BytesIO()
    wanted: list[tuple[object, ...]] = []
    with tarfile.open(fileobj=buffer, mode="w", format=form, encoding="utf-8") as archive:
        for info, content in data.draw(st.lists(infos(FORMATS[form]), max_size=5)):
            try:
                archive.addfile(info, io.BytesIO(content))
            except ValueError:  # too long for that format
                continue
            name, time = info.name.rstrip("/"), int(info.mtime) * 10**9
            wanted.append((KINDS[info.type], name, info.mode, info.uid, info.gid, time, info.linkname, content))
    found = []
    for entry, stream in tar.entries((Slow if slow else io.BytesIO)(buffer.getvalue())):
        whole, name = stream.read() if stream else b"", entry.name.rstrip("/")
        assert len(whole) == entry.size
        found.append((entry.kind, name, entry.mode, entry.uid, entry.gid, entry.mtime_ns, entry.target, whole))
    assert found == wanted


@pytest.mark.parametrize("taken", [0, 1, 700, 5000])
def test_content_need_not_be_read(taken: int) -> None:
    """What is left of it is skipped."""
    raw = header(size=b"%011o\0" % 5000) + b"x" * 5000 + bytes(-5000 % 512) + header(name=b"y") + END
    found = []
    for entry, content in tar.entries(io.BytesIO(raw)):
        found.append(entry.name)
        if content and entry.size:
            assert content.read(taken) == b"x" * taken
    assert found == ["x", "y"]


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (pax({b"mtime": b"315619200.1234567891"}) + header(), {"mtime_ns": 315619200123456789}),
        (pax({b"mtime": b"-1.5"}) + header(), {"mtime_ns": -1_500_000_000}),
        (header(mtime=base256(-3)), {"mtime_ns": -3_000_000_000}),
        (header(uid=base256(3_000_000_000, 8)), {"uid": 3_000_000_000}),
        (pax({b"uid": b"3000000000"}) + header(uid=b"0000005\0"), {"uid": 3_000_000_000}),
        (header(b"\0", name=b"d/"), {"kind": "folder"}),
        (header(b"5", size=b"%011o\0" % 4096), {"kind": "folder", "size": 0}),
        (header(name=b"n", prefix=b"p"), {"name": "p/n"}),
        (header(name=b"n", magic=b"ustar  \0", prefix=b"14712345670"), {"name": "n"}),
        (extended(b"L", b"long\0\0\0") + extended(b"K", b"far\0") + header(b"2"), {"name": "long", "target": "far"}),
        (pax({b"path": b""}) + header(), {"name": "x"}),
        (pax({b"path": "ä\udcff".encode("utf-8", "surrogateescape")}) + header(), {"name": "ä\udcff"}),
        (pax({b"comment": b"of git"}, b"g") + header(), {"name": "x", "headers": {}}),
        (pax({b"SCHILY.xattr.user.a": b"a=\n\0"}) + header(), {"headers": {"SCHILY.xattr.user.a": "a=\n\0"}}),
    ],
)
def test_forms_of_values(raw: bytes, wanted: Mapping[str, object]) -> None:
    """Every way in which writers state a value is read as they mean it."""
    ((entry, _),) = read(raw + END)
    assert {name: getattr(entry, name) for name in wanted} == wanted


def test_sums_with_a_sign() -> None:
    """Some old tars took bytes for signed in their checksum."""
    block = bytearray(header(name=b"\xff\xfe"))
    signed = sum(byte - 256 * (byte > 127) for byte in (*block[:148], *b" " * 8, *block[156:]))
    block[148:156] = b"%06o\0 " % signed
    assert read(bytes(block) + END)[0][0].name == "\udcff\udcfe"


WRONG_RECORDS = [
    b"0 a=b\n", b"5 ab\n", b"6 a=bc", b"99 a=b\n", b"a=b\n", b"4 =\n", b"-6 a=b\n", b" 6 a=b\n", "٦ a=b\n".encode(),
]  # fmt: skip
SPARSE = {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.realsize": b"10"}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "ends before an entry"),
        (b"x" * 100, "ends within a header"),
        (b"x" * 512, "broken header"),
        (header(size=b"%011o\0" % 9) + b"123", "ends within an entry"),
        (header(size=b"%011o\0" % 3) + b"123", "ends within an entry"),
        (header(size=b"\x80" + (1 << 80).to_bytes(11, "big")), "ends within an entry"),
        (header(size=base256(-512)), "a size or owner that is none"),
        (header(uid=base256(-1, 8)), "a size or owner that is none"),
        (header(gid=base256((1 << 32) - 1, 8)), "a size or owner that is none"),
        (header(size=b"-0000000005\0"), "broken header"),
        (header(size=b"0000_000001\0"), "broken header"),
        (header(size=b"0x000000001\0"), "broken header"),
        (header(mode=b"9999999\0"), "broken header"),
        (header(mtime=base256(1 << 40)), "a time that is none"),
        *((pax({b"mtime": time}) + header(), "a time that is none") for time in (b"nan", b"1e5", b"inf", b"9" * 5000)),
        (pax({b"size": b"-5"}) + header(), "a size that is none"),
        (pax({b"size": b"9" * 5000}) + header(), "a size that is none"),
        (pax({b"size": "٣".encode()}) + header(), "a size that is none"),
        (pax({b"gid": b"0x5"}) + header(), "a gid that is none"),
        (pax({b"path": b"a\0b"}) + header(), "a name with NUL"),
        (pax({b"linkpath": b"a\0b"}) + header(b"2"), "a name with NUL"),
        (pax({b"path": b"other"}, b"g") + header(), "sets 'path' of all"),
        (pax({b"GNU.sparse.major": b"1"}, b"g") + header(), "sets 'GNU.sparse.major' of all"),
        (pax(SPARSE) + header(size=b"%011o\0" % 512) + b"9" * 512, "a sparse file"),
        (header(b"S"), "a sparse file"),
        (header(b"V"), "unknown type"),
        (header(b"X", size=b"%011o\0" % 5) + b"5 a=\n".ljust(512, b"\0") + header(), "unknown type"),
        (pax({b"a": b"b"}) * 5000 + header(), "two extended headers"),
        (extended(b"L", b"a\0") * 2 + header(), "two extended headers"),
        (extended(b"L", b"a\0") + pax({b"path": b"b"}) + header(), "two names"),
        (pax({b"a": b"b"}), "ends before an entry"),
        (header(b"x", size=b"%011o\0" % (1 << 30)) + bytes(1 << 16), "a header of 1073741824 bytes"),
        (header(b"L", size=base256(-512)), "a header of -512 bytes"),
        *((extended(b"x", wrong) + header(), "a broken extended header") for wrong in WRONG_RECORDS),
        (header() + END + header(name=b"hidden"), "more behind its end"),
        (header() + bytes(512) + header(name=b"hidden") + END, "more behind its end"),
        (header() + END + bytes(1 << 20) + b"x", "more behind its end"),
    ],
)  # fmt: skip
def test_what_is_refused(raw: bytes, says: str) -> None:
    """Nothing is guessed, nothing is skipped, and no number is believed because Python can read it."""
    with pytest.raises(ImageError, match=says):
        read(raw + (END if says.startswith("a ") else b""))


def parted(raw: bytes, places: Sequence[tuple[int, int]]) -> bytes:
    """The archive with other bytes at some places, the first header's checksum made right."""
    changed = bytearray(raw)
    for place, byte in places:
        changed[place % len(raw)] = byte
    changed[148:156] = b" " * 8
    changed[148:156] = b"%06o\0 " % sum(changed[:512])
    return bytes(changed)


@given(places=st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=6), cut=st.integers(0, 4096))
@example(places=[(124, 0xFF), (135, 0)], cut=4096)
def test_any_bytes(places: list[tuple[int, int]], cut: int) -> None:
    """Whatever a layer holds is read or is an ImageError; no content is longer or shorter than its entry states."""
    raw = pax({b"path": b"p" * 200, b"mtime": b"1.5"}) + header(size=b"%011o\0" % 600) + b"x" * 1024
    raw += header(b"2", name=b"y") + extended(b"L", b"l" * 300) + header()
    try:
        found = read((parted(raw + END, places) + END)[:cut])
    except ImageError:
        return
    assert all(len(content) == entry.size for entry, content in found)
