"""How a compression is written, and what its name in a key is."""

from __future__ import annotations

import pytest

from torchkiln import specs
from torchkiln.errors import UsageError
from torchkiln.oci import compression
from torchkiln.oci.compression import GZIP, LEVEL, Compression


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gzip", GZIP),
        ("zstd", Compression(kind="zstd", level=LEVEL)),
        ("zstd:1", Compression(kind="zstd", level=1)),
        ("zstd:19", Compression(kind="zstd", level=19)),
    ],
)
def test_compressions_are_read_as_they_are_written(text: str, expected: Compression) -> None:
    """Kind, and for zstd a level; what is read is written the same way again."""
    assert compression.parse(text) == expected
    assert compression.parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no compression"),
        ("zst", "is no compression"),
        ("ZSTD", "is no compression"),
        ("gzip:6", "gzip has no level"),
        ("gzip:", "gzip has no level"),
        ("zstd:", "is no compression"),
        ("zstd:0", "no such level"),
        ("zstd:20", "no such level"),
        ("zstd:-1", "is no compression"),
        ("zstd:³", "is no compression"),
        ("zstd:3 ", "is no compression"),
        ("zstd:3:4", "is no compression"),
    ],
)
def test_what_is_no_compression_is_refused(text: str, why: str) -> None:
    """In words, with everything that is legal."""
    with pytest.raises(UsageError, match=why) as raised:
        compression.parse(text)
    assert raised.value.remedy == "gzip, zstd (level 3) or zstd:1 to zstd:19"


def test_each_compression_has_keys_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kind, level and the version of the encoder; gzip is what layers are made as, under their own key."""
    zstd = [Compression(kind="zstd", level=level) for level in (3, 9)]
    assert specs.compressed_key("wheel-ab", GZIP) == "wheel-ab"
    assert [specs.compressed_key("wheel-ab", one) for one in zstd] == ["wheel-ab.zstd-3-1", "wheel-ab.zstd-9-1"]
    monkeypatch.setattr(Compression, "FORMAT", 2)
    assert specs.compressed_key("wheel-ab", zstd[0]) == "wheel-ab.zstd-3-2"
