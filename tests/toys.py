"""Small things that look like the real ones: wheels, and layers read back."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
import zlib
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name, parse_wheel_filename

from torchkiln.lock.lockfile import Pin
from torchkiln.oci import digest
from torchkiln.specs import WheelSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from torchkiln.oci.image import Layer
    from torchkiln.oci.store import Store

SITE = "opt/venv/lib/python/site-packages"


def make_wheel(
    folder: Path,
    name: str = "toy",
    version: str = "1.0",
    files: Mapping[str, bytes | str] | None = None,
    *,
    entry_points: str = "",
    requires: Collection[str] = (),
    wheel: str = "Wheel-Version: 1.0\nGenerator: toys\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    tag: str = "py3-none-any",
    executable: Collection[str] = (),
    stored: Collection[str] = (),
    streamed: bool = False,
    claims: Mapping[str, str | None] | None = None,
) -> Path:
    """Write a wheel and give its path.

    `files` are by name in the wheel; a leading `{data}` stands for its .data folder, `{info}` for its .dist-info.
    `stored` members are not compressed; `streamed` writes sizes behind the data (general purpose bit 3).
    `claims` replaces RECORD lines by name, None leaves one out; names that are no files add lines.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    content: dict[str, bytes | str] = {
        filename.replace("{data}", f"{stem}.data").replace("{info}", f"{stem}.dist-info"): data
        for filename, data in (files if files is not None else {f"{name}/__init__.py": "answer = 42\n"}).items()
    }
    content |= {f"{stem}.dist-info/METADATA": metadata, f"{stem}.dist-info/WHEEL": wheel}
    content |= {f"{stem}.dist-info/entry_points.txt": entry_points} if entry_points else {}
    plain = {key: data.encode() if isinstance(data, str) else data for key, data in content.items()}
    lines: dict[str, str | None] = {key: record_line(key, data) for key, data in plain.items()}
    lines |= {f"{stem}.dist-info/RECORD": f"{stem}.dist-info/RECORD,,"}
    lines |= {key.replace("{info}", f"{stem}.dist-info"): line for key, line in (claims or {}).items()}
    plain[f"{stem}.dist-info/RECORD"] = "".join(f"{line}\n" for line in lines.values() if line is not None).encode()
    path = folder / f"{stem}-{tag}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, zipfile.ZipFile(_OneWay(file) if streamed else file, "w") as archive:
        for filename, data in plain.items():
            entry = zipfile.ZipInfo(filename, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if filename in executable else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_STORED if filename in stored else zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return path


class _OneWay(io.RawIOBase):
    """A pipe as zipfile sees it: no going back, so sizes come after the data."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        return self._file.write(data)  # type: ignore[arg-type]


def record_line(name: str, data: bytes) -> str:
    """A line of RECORD."""
    value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    quoted = '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',"\n\r') else name
    return f"{quoted},sha256={value},{len(data)}"


def pin(path: Path) -> Pin:
    """The pin that a lock would hold for a wheel file."""
    name, version, *_ = parse_wheel_filename(path.name)
    found, size = digest.of_file(path)
    return Pin(
        name=canonicalize_name(name),
        version=str(version),
        sha256=digest.encoded(found),
        filename=path.name,
        size=size,
    )


def spec(*paths: Path) -> tuple[WheelSpec, dict[str, Path]]:
    """A spec of these wheels, and where they lie."""
    pins = tuple(pin(path) for path in paths)
    return WheelSpec(pins=pins), {one.sha256: path for one, path in zip(pins, paths, strict=True)}


def tar_bytes(store: Store, layer: Layer) -> bytes:
    """The tar of a layer, which must be one gzip member with the promised digest and size."""
    blob = store.read(layer.descriptor.digest)
    assert digest.of_bytes(blob) == layer.descriptor.digest
    assert len(blob) == layer.descriptor.size
    member = zlib.decompressobj(31)
    tar = member.decompress(blob)
    assert member.eof
    assert member.unused_data == b""
    assert digest.of_bytes(tar) == layer.diff_id
    assert len(tar) == layer.unpacked_size
    return tar


def unpacked(store: Store, layer: Layer) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """Entry and content of every path of a layer, by the standard library's reader."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(tar_bytes(store, layer))) as archive:
        for entry in archive:
            assert entry.name not in found, f"{entry.name} is there twice"
            stream = archive.extractfile(entry) if entry.isreg() else None
            found[entry.name] = (entry, stream.read() if stream else b"")
    return found
