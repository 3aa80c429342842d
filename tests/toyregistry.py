"""A registry on this machine, with the faults that real ones have; and toy images to put on it."""

from __future__ import annotations

import base64
import gzip
import http.server
import io
import json
import tarfile
import threading
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from torchkiln.oci import digest as digests
from torchkiln.oci.image import CONFIG_TYPE, INDEX_TYPE, LAYER_TYPE, MANIFEST_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

REPOSITORY = "team/base"


def tar(files: Mapping[str, bytes | str], modes: Mapping[str, int] | None = None) -> bytes:
    """A layer's tar: bytes are files, text is where a symbolic link points; a name that ends in / is a folder."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name.rstrip("/"))
            member.mode = (modes or {}).get(name, 0o755)
            if isinstance(data, str):
                member.type, member.linkname = tarfile.SYMTYPE, data
            elif name.endswith("/"):
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(data)
            archive.addfile(member, io.BytesIO(data if isinstance(data, bytes) else b""))
    return stream.getvalue()


@dataclass
class Toy:
    """What is there, what goes wrong next, and what was asked."""

    host: str = ""
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Digest → media type and bytes."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Digest → what its next requests meet: a status, `cut`, `other`, `longer`, `astray`."""
    ranges: bool = True
    password: str = ""
    """Of user `user`; empty lets everybody in."""
    tokens: bool = False
    """Whether a token is asked for."""
    realm: str = ""
    """Where tokens are had, if not here."""
    expired: set[str] = field(default_factory=set)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """(path, Range or Authorization's kind)."""

    def put(self, data: bytes) -> str:
        """Store a blob; its digest."""
        self.blobs[digests.of_bytes(data)] = data
        return digests.of_bytes(data)

    def add(
        self,
        *tars: bytes,
        layer_type: str = LAYER_TYPE,
        config: Mapping[str, Any] | None = None,
        manifest: Mapping[str, Any] | None = None,
    ) -> str:
        """An image of these layers; its digest. `config` and `manifest` replace what they would say."""
        packed = [gzip.compress(data, mtime=0) if layer_type.endswith("gzip") else data for data in tars]
        about = {
            "architecture": "amd64",
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [digests.of_bytes(data) for data in tars]},
            **(config or {}),
        }
        text = json.dumps(about).encode()
        listed = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "digest": self.put(text), "size": len(text)},
            "layers": [{"mediaType": layer_type, "digest": self.put(data), "size": len(data)} for data in packed],
            **(manifest or {}),
        }
        return self.name(listed)

    def name(self, document: Mapping[str, Any]) -> str:
        """Serve a manifest or index; its digest."""
        data = json.dumps(document).encode()
        self.manifests[digests.of_bytes(data)] = (str(document.get("mediaType", "")), data)
        return digests.of_bytes(data)

    def index(self, images: Mapping[str, str]) -> str:
        """An index of images by architecture; its digest."""
        entries = [
            {
                "mediaType": MANIFEST_TYPE,
                "digest": digest,
                "size": len(self.manifests[digest][1]),
                "platform": {"os": "unknown" if architecture == "unknown" else "linux", "architecture": architecture},
            }
            for architecture, digest in images.items()
        ]
        return self.name({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries})

    def at(self, digest: str) -> str:
        """How matrix.yaml names it."""
        return f"{self.host}/{REPOSITORY}@{digest}"


class Handler(http.server.BaseHTTPRequestHandler):
    """GET of manifests, blobs and tokens."""

    protocol_version = "HTTP/1.1"
    toy: Toy

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        """Route."""
        parts = urlsplit(self.path)
        if parts.path == "/token":
            self.hand_out(parse_qs(parts.query))
            return
        authorization = self.headers.get("Authorization", "")
        self.toy.asked.append((parts.path, self.headers.get("Range", "") or authorization.partition(" ")[0]))
        if self.toy.tokens and not self.admitted(authorization):
            place = self.toy.realm or f"http://{self.toy.host}/token"
            asked = f'Bearer realm="{place}",service="toy",scope="repository:{REPOSITORY}:pull"'
            self.reply(401, b"", {"WWW-Authenticate": asked})
        elif self.toy.password and not self.toy.tokens and authorization != self.basic():
            self.reply(401, b"", {"WWW-Authenticate": 'Basic realm="toy"'})
        else:
            self.serve(*parts.path.removeprefix(f"/v2/{REPOSITORY}/").split("/", 1))

    def admitted(self, authorization: str) -> bool:
        """Whether a token is good; one that has expired is forgotten."""
        return authorization.startswith("Bearer good") and authorization not in self.toy.expired

    def basic(self) -> str:
        """What the right credentials look like."""
        return "Basic " + base64.b64encode(f"user:{self.toy.password}".encode()).decode()

    def hand_out(self, query: Mapping[str, list[str]]) -> None:
        """A token, to whoever has the password."""
        right = query.get("scope") == [f"repository:{REPOSITORY}:pull"] and query.get("service") == ["toy"]
        if not right or (self.toy.password and self.headers.get("Authorization") != self.basic()):
            self.reply(403, b"{}")
            return
        self.reply(200, json.dumps({"token": f"good{len(self.toy.expired)}"}).encode())

    def serve(self, kind: str, digest: str) -> None:
        """A manifest or a blob, as its next fault says."""
        media_type, data = self.toy.manifests.get(digest, ("", b""))
        if kind == "blobs":
            media_type, data = "application/octet-stream", self.toy.blobs.get(digest, b"")
        fault = self.toy.faults[digest].pop(0) if self.toy.faults[digest] else ""
        if fault == "astray":
            self.reply(302, b"", {"Location": self.path})
        elif fault.isdecimal():
            self.reply(int(fault), b"", {"Retry-After": "7"} if fault == "429" else {})
        elif not data:
            self.reply(404, b"")
        else:
            changed = {"other": bytes(len(data)), "longer": data + b"more"}.get(fault, data)
            self.part(changed, media_type, cut=fault == "cut")

    def part(self, data: bytes, media_type: str, *, cut: bool) -> None:
        """All of it, or what Range asks for."""
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.toy.ranges else 0
        headers = {"Content-Type": media_type}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.reply(206 if start else 200, data[start:], headers, cut=cut)

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, cut: bool = False) -> None:
        """Headers and body; `cut` ends amid it."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) * 6 // 10] if cut else body)
        self.close_connection = cut


@contextmanager
def serving() -> Iterator[Toy]:
    """A registry with nothing on it."""
    toy = Toy()
    handler = type("Bound", (Handler,), {"toy": toy})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        toy.host = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield toy
        finally:
            server.shutdown()
            thread.join()
