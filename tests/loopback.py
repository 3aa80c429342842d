"""A package index on this machine, with the faults that real ones have; and toy wheels to put on it."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import re
import tarfile
import threading
import time
import zipfile
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from packaging.utils import canonicalize_name

from tests.dripping import Dripping
from tests.toys import record_line
from torchkiln.lock.lockfile import Pin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


SILENCE = 3
"""Seconds of a page that does not come, longer than the patience of the client in the tests."""


def wheel(name: str, version: str, *, requires: tuple[str, ...] = (), body: bytes = b"") -> bytes:
    """A small valid wheel with one module."""
    package = name.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    members = {
        f"{package}.py": body,
        f"{info}/METADATA": metadata(name, version, requires),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [*(record_line(path, content) for path, content in members.items()), f"{info}/RECORD,,"]
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, content in members.items():
            archive.writestr(path, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{line}\n" for line in record))
    return stream.getvalue()


def metadata(name: str, version: str, requires: tuple[str, ...] = ()) -> bytes:
    """Core metadata."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {text}" for text in requires), ""]).encode()


@dataclass(kw_only=True)
class File:
    """A file on the index, and how the index lists it."""

    content: bytes
    core: bytes
    sha256: str
    """As listed; empty for none."""
    yanked: str = ""

    @property
    def fragment(self) -> str:
        """Of its address on a page of links (PEP 503)."""
        return f"#sha256={self.sha256}" if self.sha256 else ""

    @property
    def attributes(self) -> str:
        """Of its link (PEP 592, 714)."""
        core = ' data-core-metadata="true"' if self.core else ""
        return core + (f' data-yanked="{self.yanked}"' if self.yanked else "")


def sdist(name: str, version: str, *, code: str) -> File:
    """A source archive whose build backend runs `code` as soon as it is asked for anything."""
    members = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": code,
    }
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path, text in members.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    content = stream.getvalue()
    return File(content=content, core=b"", sha256=hashlib.sha256(content).hexdigest())


@dataclass
class Index:
    """What is on the index, what goes wrong next, and what was asked."""

    url: str = ""
    files: dict[str, dict[str, File]] = field(default_factory=lambda: defaultdict(dict))
    """Folder (`simple`, `whl/cpu`) → file name → file."""
    faults: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """File name, or page (`whl/cpu/torch`) → what the next requests for it meet; see Handler.file, Handler.page and
    Handler.reply; `!` stays."""
    both: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=60))
    """Where `together` waits for a second request, before both meet 404."""
    gates: dict[str, threading.Event] = field(default_factory=dict)
    """File name → what must happen before the file comes; 500 if it does not within a minute."""
    down: set[str] = field(default_factory=set)
    """Folders that answer 503."""
    pages: dict[str, str] = field(default_factory=dict)
    """Folder → `json` (PEP 691) or `html` (PEP 503); unless stated, `whl/…` serves html and others json."""
    ranges: bool = True
    relative: bool = False
    """Whether pages name files by relative addresses, as many private indexes do."""
    password: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """(file name, Range header) of every request for a file."""
    visited: list[str] = field(default_factory=list)
    """Every page that was asked for."""

    def add(
        self,
        name: str,
        version: str,
        tag: str = "py3-none-any",
        *,
        folder: str = "simple",
        requires: tuple[str, ...] = (),
        body: bytes = b"",
        sha256: str | None = None,
        yanked: str = "",
        core: bool = True,
    ) -> Pin:
        """Put a toy wheel on the index, with its metadata beside it unless `core` is False; the pin that means it."""
        content = wheel(name, version, requires=requires, body=body)
        digest = hashlib.sha256(content).hexdigest()
        filename = f"{name.replace('-', '_')}-{version}-{tag}.whl"
        listed = digest if sha256 is None else sha256
        beside = metadata(name, version, requires) if core else b""
        self.files[folder][filename] = File(content=content, core=beside, sha256=listed, yanked=yanked)
        return Pin(name=name, version=version, sha256=digest, filename=filename, size=len(content))

    def put(self, path: Path, *, folder: str = "simple") -> None:
        """Put a wheel of this disk on the index, without metadata beside it."""
        content = path.read_bytes()
        self.files[folder][path.name] = File(content=content, core=b"", sha256=hashlib.sha256(content).hexdigest())

    def environment(self, home: object) -> dict[str, str]:
        """What makes uv ask this index and nobody else."""
        address = self.url.replace("//", f"//user:{self.password}@") if self.password else self.url
        return {
            "HOME": str(home),
            "UV_CACHE_DIR": f"{home}/uv",
            "UV_DEFAULT_INDEX": f"{address}/simple",
            "UV_HTTP_RETRIES": "0",
            "TORCHKILN_PYTORCH_INDEX": f"{address}/whl",
        }


class Handler(http.server.BaseHTTPRequestHandler):
    """Pages by PEP 691 and PEP 503, metadata by PEP 658, files with or without ranges."""

    protocol_version = "HTTP/1.1"
    index: Index

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        """As GET, without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Route."""
        folder, _, rest = unquote(self.path).strip("/").rpartition("/")
        wanted = base64.b64encode(f"user:{self.index.password}".encode()).decode()
        if self.index.password and self.headers.get("Authorization") != f"Basic {wanted}":
            self.reply(401, b"", {"WWW-Authenticate": "Basic"})
        elif folder.startswith("files/"):
            self.file(folder.removeprefix("files/"), rest)
        else:
            self.page(folder, rest)

    def page(self, folder: str, project: str) -> None:
        """The page of a project, as the next fault of it says: a status, or `slow`, `silent` or `drip`."""
        fault = self.next_fault(f"{folder}/{project}")
        self.index.visited.append(f"{folder}/{project}")
        if folder in self.index.down or fault.isdecimal():
            self.reply(int(fault or 503), b"")
            return
        if fault == "silent":
            time.sleep(SILENCE)
            self.close_connection = True  # whoever asked is gone
            return
        if fault == "drip":
            self.wfile = Dripping(self.wfile)
        elif fault:
            time.sleep(0.3)
        if self.index.pages.get(folder, "html" if folder.startswith("whl/") else "json") == "html":
            self.html(folder, project)
        else:
            self.json(folder, project)

    def listed(self, folder: str, project: str) -> dict[str, File]:
        """Files of a project."""
        files = self.index.files.get(folder, {})
        return {name: file for name, file in files.items() if canonicalize_name(name.split("-")[0]) == project}

    def address(self, folder: str, name: str) -> str:
        """Where a page says that a file is."""
        above = "../" * (folder.count("/") + 2) if self.index.relative else f"{self.index.url}/"
        return f"{above}files/{folder}/{quote(name)}"

    def json(self, folder: str, project: str) -> None:
        """PEP 691."""
        files = [
            {
                "filename": name,
                "url": self.address(folder, name),
                "hashes": {"sha256": file.sha256} if file.sha256 else {},
                "size": len(file.content),
                "core-metadata": bool(file.core),
                "yanked": file.yanked or False,
            }
            for name, file in self.listed(folder, project).items()
        ]
        page = {"meta": {"api-version": "1.1"}, "name": project, "versions": [], "files": files}
        kind = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
        self.reply(200 if files else 404, json.dumps(page).encode(), kind)

    def html(self, folder: str, project: str) -> None:
        """PEP 503: no sizes."""
        found = self.listed(folder, project)
        links = [
            f'<a href="{self.address(folder, name)}{file.fragment}"{file.attributes}>{name}</a>'
            for name, file in found.items()
        ]
        self.reply(200 if found else 404, "".join(links).encode(), {"Content-Type": "text/html"})

    def file(self, folder: str, name: str) -> None:
        """A file, as the next fault of it says."""
        if name.endswith(".metadata"):
            core = self.index.files[folder][name.removesuffix(".metadata")].core
            self.reply(200 if core else 404, core)
            return
        self.index.asked.append((name, self.headers.get("Range", "")))
        fault = self.next_fault(name)
        content = self.index.files[folder][name].content
        if name in self.index.gates and not self.index.gates[name].wait(60):
            self.reply(500, b"")
        elif fault == "together":
            self.index.both.wait()
            self.reply(404, b"")
        elif fault.isdecimal():
            self.reply(int(fault), b"", {"Retry-After": "7"} if fault == "503" else {})
        elif fault == "astray":
            self.reply(302, b"", {"Location": self.path})
        elif fault in {"other", "other-cut"}:
            self.part(bytes(len(content)), fault)
        elif fault == "longer":
            self.part(content + b"more", fault)
        elif fault == "shorter":
            self.part(content[:-4], fault)
        else:
            self.part(content, fault)

    def next_fault(self, name: str) -> str:
        """What goes wrong now."""
        faults = self.index.faults[name]
        if not faults:
            return ""
        return faults[0].removeprefix("!") if faults[0].startswith("!") else faults.pop(0)

    def part(self, content: bytes, fault: str) -> None:
        """The file, or the asked part of it."""
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        headers = {"ETag": etag} | ({"Accept-Ranges": "bytes"} if self.index.ranges else {})
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if asked is None or not self.index.ranges or self.headers.get("If-Range", etag) != etag:
            self.reply(200, content, headers, fault=fault)
            return
        start = int(asked[1]) if asked[1] else len(content) - int(asked[2])
        end = int(asked[2]) + 1 if asked[1] and asked[2] else len(content)
        headers["Content-Range"] = f"bytes {start}-{min(end, len(content)) - 1}/{len(content)}"
        self.reply(206, content[start:end], headers, fault=fault)

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, fault: str = "") -> None:
        """Headers and body; `cut` ends after 60 % of it, `slow` takes its time, `drip` no end of it."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "slow":
            time.sleep(0.3)
        if fault == "drip":
            self.wfile = Dripping(self.wfile)
        if fault in {"cut", "other-cut"}:
            self.wfile.write(body[: len(body) * 6 // 10])
            self.close_connection = True
        else:
            self.wfile.write(body)


@contextmanager
def serve() -> Iterator[Index]:
    """An empty index on a free port of the loopback interface."""
    index = Index()
    handler = type("Bound", (Handler,), {"index": index})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        index.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()
