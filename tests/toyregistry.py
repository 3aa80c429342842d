"""A registry on this machine, with the faults that real ones have; and toy images to put on it."""

from __future__ import annotations

import base64
import http.server
import io
import json
import re
import secrets
import socket
import struct
import sys
import tarfile
import threading
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from tests import rawlayers
from tests.dripping import Dripping
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
    """Digest → what its next requests meet: a status, `cut`, `other`, `longer`, `astray`, `stall`, `open`, `whole`;
    `drip` or `trickle` for a byte at a time, of all or behind the headers."""
    ranges: bool = True
    password: str = ""
    """Of user `user`; empty lets everybody in."""
    tokens: bool = False
    """Whether a token is asked for."""
    identity: str = ""
    """A refresh token that is as good as the password."""
    away: str = ""
    """Where uploads go, if not here."""
    realm: str = ""
    """Where tokens are had, if not here."""
    expired: set[str] = field(default_factory=set)
    scopes: list[list[str]] = field(default_factory=list)
    """What tokens were asked for."""
    least: int = 0
    """Bytes that a chunk must have, but the last."""
    mounts: dict[str, set[str]] = field(default_factory=dict)
    """Repository → digests of blobs that may be mounted from it; they lie in `others`."""
    others: dict[str, bytes] = field(default_factory=dict)
    """Blobs of other repositories."""
    uploads: dict[str, bytearray] = field(default_factory=dict)
    chunks: list[tuple[int, int]] = field(default_factory=list)
    """First byte and length of each that was asked to be taken."""
    log: list[str] = field(default_factory=list)
    """What was written, in order: `blob DIGEST`, `manifest NAME`."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    stalled: threading.Event = field(default_factory=threading.Event)
    """A chunk is not taken, for the fault `stall` …"""
    stall: threading.Event = field(default_factory=threading.Event)
    """… until this is set."""
    retry: str = "7"
    """What it says with 429."""
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
        packed = [rawlayers.packed(data, layer_type) for data in tars]
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
    """Manifests, blobs, uploads and tokens."""

    protocol_version = "HTTP/1.1"
    toy: Toy
    trickles = False
    """Whether the next answer comes a byte at a time behind its headers."""

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        """Route."""
        parts = urlsplit(self.path)
        if parts.path == "/token":
            fault = self.fault("token")
            if fault == "stall":
                self.hold_up()
            elif fault.isdecimal():
                self.reply(int(fault), b"")
            else:
                self.drip(fault)
                self.hand_out(parse_qs(parts.query))
            return
        if self.let_in("pull"):
            repository, kind, name = re.findall(r"^/v2/(.+?)/(blobs|manifests)/(.+)$", parts.path)[0]
            if name.startswith("uploads/"):
                self.tell(name.removeprefix("uploads/"))
            elif repository != REPOSITORY:
                self.part(self.toy.others[name], "application/octet-stream", cut=False)
            else:
                self.serve(kind, name)

    def do_HEAD(self) -> None:
        """As GET, without the body."""
        self.do_GET()

    def let_in(self, right: str) -> bool:
        """Whether the request may go on; it is answered if not."""
        authorization = self.headers.get("Authorization", "")
        kind = authorization.partition(" ")[0]
        self.toy.asked.append((urlsplit(self.path).path, self.headers.get("Range", "") or kind))
        if self.toy.tokens and not self.admitted(authorization, right):
            place = self.toy.realm or f"http://{self.toy.host}/token"
            asked = f'Bearer realm="{place}",service="toy",scope="repository:{REPOSITORY}:{right}"'
            self.reply(401, b"", {"WWW-Authenticate": asked})
        elif self.toy.password and not self.toy.tokens and authorization != self.basic():
            self.reply(401, b"", {"WWW-Authenticate": 'Basic realm="toy"'})
        else:
            return True
        return False

    def admitted(self, authorization: str, right: str) -> bool:
        """Whether a token is good; one that has expired is forgotten."""
        if right != "pull" and not authorization.endswith(".push"):
            return False
        return authorization.startswith("Bearer good") and authorization not in self.toy.expired

    def taken(self) -> bytes:
        """The request's body, as far as it comes."""
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def fault(self, of: str) -> str:
        """What goes wrong now; an expired token is told before the body is read."""
        with self.toy.lock:
            fault = self.toy.faults[of].pop(0) if self.toy.faults[of] else ""
        if fault == "401":
            self.toy.expired.add(self.headers.get("Authorization", ""))
        return fault

    def do_POST(self) -> None:
        """Begin an upload, or mount; or hand out a token for a refresh token."""
        if self.path == "/token":
            form = parse_qs(self.taken().decode())
            right = form["grant_type"] == ["refresh_token"] and form["refresh_token"] == [self.toy.identity]
            self.hand_out({**form, "scope": form["scope"][0].split()}, known=right)
            return
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        fault = self.fault("mount" if "mount" in query else "POST")
        if not self.let_in("pull,push"):
            return
        self.taken()
        if " " in fault:
            self.lead(fault)
        elif fault.isdecimal():
            self.refuse(int(fault))
        elif query.get("mount") in self.toy.mounts.get(query.get("from", ""), ()):
            self.keep(query["mount"], self.toy.others[query["mount"]])
        else:
            name = secrets.token_hex(4)
            self.toy.uploads[name] = bytearray()
            headers = {"OCI-Chunk-Min-Length": str(self.toy.least)} if self.toy.least else {}
            self.reply(
                202, b"", {"Location": f"{self.toy.away}/v2/{REPOSITORY}/blobs/uploads/{name}?state=a%2Fb", **headers}
            )

    def lead(self, fault: str) -> None:
        """Elsewhere: the fault is a status and the beginning of an address."""
        status, place = fault.split(" ")
        self.reply(int(status), b"", {"Location": place + self.path})

    def tell(self, name: str) -> None:
        """How far an upload is."""
        fault = self.fault("status")
        if name not in self.toy.uploads or fault:
            self.reply(int(fault or 404), b"")
        else:
            self.reply(204, b"", self.told(name))

    def told(self, name: str) -> dict[str, str]:
        """Where it goes on, and what is there."""
        there = max(0, len(self.toy.uploads[name]) - 1)
        return {"Location": f"/v2/{REPOSITORY}/blobs/uploads/{name}?state={there}", "Range": f"0-{there}"}

    def do_PATCH(self) -> None:
        """Take a chunk."""
        name, fault = urlsplit(self.path).path.rpartition("/")[2], self.fault("PATCH")
        if not self.let_in("pull,push"):
            self.close_connection = True  # the body is not read
            return
        length, kept = int(self.headers["Content-Length"]), self.toy.uploads.get(name)
        start = int(self.headers["Content-Range"].partition("-")[0])
        self.toy.chunks.append((start, length))
        if fault in {"cut", "lost"}:
            half = self.rfile.read(length // 2)
            if fault == "cut" and kept is not None:
                kept += half
            else:
                self.toy.uploads.pop(name, None)
            self.break_off()
        elif " " in fault:
            self.taken()
            self.lead(fault)
        elif fault == "stall":
            self.hold_up()
        elif fault == "slow":
            data = b"".join(self.rfile.read(min(1 << 16, length - at)) for at in range(0, length, 1 << 16))
            self.append(name, data)
        elif fault.isdecimal():
            self.taken()
            self.refuse(int(fault))
        elif kept is None or start != len(kept):
            self.taken()
            self.reply(404 if kept is None else 416, b"", {} if kept is None else self.told(name))
        else:
            data = self.taken()
            self.append(name, data[:9] if fault == "few" else data, unsaid=fault == "unsaid")

    def hold_up(self) -> None:
        """Neither take what comes nor answer, for as long as somebody wants."""
        self.toy.stalled.set()
        self.toy.log.append("let go" if self.toy.stall.wait(60) else "waited in vain")
        self.break_off()

    def do_DELETE(self) -> None:
        """Forget an upload."""
        fault = self.fault("DELETE")
        if self.let_in("pull,push"):
            name = urlsplit(self.path).path.rpartition("/")[2]
            there = self.toy.uploads.pop(name, None) is not None and not fault
            self.reply(int(fault or (204 if there else 404)), b"")

    def append(self, name: str, data: bytes, *, unsaid: bool = False) -> None:
        """Keep a chunk, and say so; `unsaid` breaks off instead."""
        self.toy.uploads[name] += data
        if unsaid:
            self.break_off()
        else:
            self.reply(202, b"", self.told(name))

    def do_PUT(self) -> None:
        """Close an upload, or name a manifest."""
        parts = urlsplit(self.path)
        kind, name = parts.path.removeprefix(f"/v2/{REPOSITORY}/").split("/", 1)
        fault = self.fault("name" if kind == "manifests" else "PUT")
        self.drip(fault)
        if not self.let_in("pull,push"):
            self.close_connection = True
            return
        data = self.taken()
        if " " in fault:
            self.lead(fault)
        elif fault.isdecimal():
            self.refuse(int(fault))
        elif fault == "stall":
            self.hold_up()
        elif kind == "manifests":
            self.take(name, data, fault)
        else:
            self.close(name.rpartition("/")[2], data, parse_qs(parts.query)["digest"][0], fault)

    def close(self, name: str, rest: bytes, digest: str, fault: str) -> None:
        """Take what came for a blob, if it is that."""
        data = bytes(self.toy.uploads.pop(name, bytearray())) + rest
        if fault == "unsaid":
            self.toy.blobs[digest] = data
            self.break_off()
        elif fault == "kept":
            self.keep(digest, self.toy.blobs.get(digest, data))
        elif digests.of_bytes(data) != digest or fault == "damaged":
            self.reply(400, b'{"errors": [{"code": "DIGEST_INVALID", "message": "other bytes"}]}')
        else:
            self.keep(digest, data, "sha256:" + "0" * 64 if fault == "other" else digest)

    def keep(self, digest: str, data: bytes, stated: str = "") -> None:
        """A blob is there now."""
        self.toy.blobs[digest] = data
        self.toy.log.append(f"blob {digest}")
        self.reply(201, b"", {"Docker-Content-Digest": stated or digest})

    def take(self, name: str, data: bytes, fault: str) -> None:
        """Take a manifest, if all that it lists is there (distribution-spec, MANIFEST_BLOB_UNKNOWN)."""
        found = json.loads(data)
        wanted = [one["digest"] for one in (*found.get("layers", ()), *filter(None, [found.get("config")]))]
        if [one for one in wanted if one not in self.toy.blobs]:
            self.reply(400, b'{"errors": [{"code": "MANIFEST_BLOB_UNKNOWN"}]}')
            return
        self.toy.manifests[name] = (self.headers["Content-Type"], bytes(len(data)) if fault == "other" else data)
        self.toy.log.append(f"manifest {name}")
        self.reply(201, b"")

    def refuse(self, status: int) -> None:
        """As registries say it."""
        headers = {"Retry-After": self.toy.retry} if status == 429 else {}
        self.reply(status, b'{"errors": [{"code": "DENIED", "message": "//me:secret@x says no"}]}', headers)

    def break_off(self) -> None:
        """Reset the connection."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def basic(self) -> str:
        """What the right credentials look like."""
        return "Basic " + base64.b64encode(f"user:{self.toy.password}".encode()).decode()

    def hand_out(self, query: Mapping[str, list[str]], *, known: bool | None = None) -> None:
        """A token, to whoever has the password."""
        scopes = query.get("scope", [])
        self.toy.scopes.append(scopes)
        right = scopes[:1] in ([f"repository:{REPOSITORY}:pull"], [f"repository:{REPOSITORY}:pull,push"])
        if known is None:
            known = not self.toy.password or self.headers.get("Authorization") == self.basic()
        if not right or not known or query.get("service") != ["toy"]:
            self.reply(403, b"{}")
        else:
            kind = ".push" if scopes[0].endswith("push") else ""
            self.reply(200, json.dumps({"token": f"good{len(self.toy.expired)}{kind}"}).encode())

    def serve(self, kind: str, digest: str) -> None:
        """A manifest or a blob, as its next fault says."""
        media_type, data = self.toy.manifests.get(digest, ("", b""))
        if kind == "blobs":
            media_type, data = "application/octet-stream", self.toy.blobs.get(digest, b"")
        fault = self.toy.faults[digest].pop(0) if self.toy.faults[digest] else ""
        self.drip(fault)
        if fault == "astray":
            self.reply(302, b"", {"Location": self.path})
        elif fault == "stall":
            self.hold_up()
        elif fault.isdecimal():
            self.reply(int(fault), b"", {"Retry-After": "7"} if fault == "429" else {})
        elif not data:
            self.reply(404, b"")
        elif fault == "open":
            self.leave_open(data)
        elif fault == "whole":
            self.reply(206, data, {"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"})
        else:
            changed = {"other": bytes(len(data)), "longer": data + b"more"}.get(fault, data)
            self.part(changed, media_type, cut=fault == "cut")

    def drip(self, fault: str) -> None:
        """Let what follows come a byte at a time, if that is the fault."""
        self.trickles = fault == "trickle"
        if fault == "drip":
            self.wfile = Dripping(self.wfile)

    def leave_open(self, data: bytes) -> None:
        """All of it as chunks of HTTP, without the last one that says so."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.close_connection = True

    def part(self, data: bytes, media_type: str, *, cut: bool) -> None:
        """All of it, or what Range asks for."""
        asked = self.headers.get("Range", "")
        first, _, last = asked.removeprefix("bytes=").partition("-") if self.toy.ranges else ("", "", "")
        start, stop = int(first or 0), min(int(last or len(data) - 1) + 1, len(data))
        headers = {"Content-Type": media_type}
        if start >= len(data):
            self.reply(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        if first:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        elif self.command == "HEAD":
            headers["Docker-Content-Digest"] = digests.of_bytes(data)
        self.reply(206 if first else 200, data[start:stop], headers, cut=cut)

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, cut: bool = False) -> None:
        """Headers and body; `cut` ends amid it."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.trickles:
            self.drip("drip")
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) * 6 // 10] if cut else body)
        self.close_connection = cut or self.close_connection


class Server(http.server.ThreadingHTTPServer):
    """Quiet about clients that have gone."""

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  socketserver's own types
        """Only what is wrong here is shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving() -> Iterator[Toy]:
    """A registry with nothing on it."""
    toy = Toy()
    with at_another_address(toy) as toy.host:
        yield toy


@contextmanager
def at_another_address(toy: Toy) -> Iterator[str]:
    """The same registry; its host and port there."""
    handler = type("Bound", (Handler,), {"toy": toy})
    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
