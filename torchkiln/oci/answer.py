"""What registries answer, read with care: bounded, in words for people, and how long they want us to wait."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import httpx

from torchkiln import network
from torchkiln.errors import ImageError, redact

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST_MANIFEST = 4 << 20
"""Bytes; what registries must take at least (distribution-spec, Pushing Manifests), and all that anybody needs."""
LONGEST_WAIT = 60
_PORTS = {"http": 80, "https": 443}
SAID = 16 << 10
"""Bytes of what a registry says about an error that are read."""


class AgainError(Exception):
    """What may be better next time."""

    def __init__(self, what: str, wait: float = 0) -> None:
        super().__init__(what)
        self.wait = wait


def patience(response: httpx.Response) -> float:
    """Seconds to wait as Retry-After has them, or until its date as the registry's own clock goes (RFC 9110, 10.2.3).

    0 if nothing was said that can be understood.
    """
    after = response.headers.get("Retry-After", "")
    if after.isdecimal():
        return min(int(after[:9]), LONGEST_WAIT)
    with suppress(ValueError, TypeError):
        then, now = (parsedate_to_datetime(text) for text in (after, response.headers.get("Date", "")))
        return min(max(0.0, (then - now).total_seconds()), LONGEST_WAIT)
    return 0


def bounded(response: httpx.Response, limit: int) -> bytes:
    """A small body as a whole; ImageError if it is larger."""
    data = network.bounded(response.iter_raw(), limit)
    if data is None:
        raise ImageError(f"more than {limit} bytes", where=str(response.url.copy_with(query=None)))
    return data


def said(response: httpx.Response) -> str:
    """What the registry says of an error (distribution-spec, "Error Codes"), short; empty if nothing."""
    try:
        data = b"" if response.is_stream_consumed else next(response.iter_raw(SAID), b"")
        first = json.loads(data)["errors"][0]
        words = f"{first.get('code', '')} {first.get('message', '')}".strip()
        return f": {redact(words)[:200]!r}"
    except (httpx.HTTPError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return ""


def refusal(response: httpx.Response, what: str, host: str, who: str = "") -> tuple[str, str]:
    """What is wrong, of an answer that no patience helps with, and what to do about it; `who` tells of credentials."""
    answer = f"{response.status_code} {response.reason_phrase}{said(response)}"
    if response.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        remedy = f"`docker login {host}`, or put its user and password into ~/.netrc, or into the file $NETRC names"
        return f"the registry refuses: {answer}{who and f'; {who}'}", remedy
    if response.status_code == httpx.codes.METHOD_NOT_ALLOWED and response.request.method in {"POST", "PATCH", "PUT"}:
        remedy = "it may be read-only, or a mirror of another registry: push to one that takes images"
        return f"the registry takes no uploads: {what}: {answer}", remedy
    if response.next_request is not None:
        place = response.next_request.url.host
        return f"{what}: the registry leads to {place}, and nothing may be sent there: {answer}", f"try to name {place}"
    if "BLOB_UNKNOWN" in answer:  # it was collected there after we had asked for it
        return f"{what}: {answer}", "run it again: what the registry lacks of the image is sent then"
    if response.status_code == httpx.codes.NOT_FOUND and (image := _image(response.request.url.path)):
        remedy = f"compare repository and tag with what was pushed; one that is private may need `docker login {host}`"
        return f"{host} has no image {image} ({answer})", remedy
    return f"{what}: {answer}", "compare the image's name with what the registry has"


def _image(path: str) -> str:
    """The image that a manifest's address stands for, by tag or digest; empty for any other address."""
    found = re.fullmatch(r"/v2/(.+)/manifests/([^/]+)", path)
    return f"{found[1]}{'@' if ':' in found[2] else ':'}{found[2]}" if found else ""


def unreached(error: Exception) -> str:
    """Which host and port nobody can be reached at, and why, where that is what went wrong; empty for all else."""
    if not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return ""
    address, why = error.request.url, re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or "it does not answer"
    place = f"{address.host}:{address.port or _PORTS.get(address.scheme, '')}"
    return f"{place} can't be reached: {why[:1].lower() + why[1:]}"


def parsed(data: bytes) -> Mapping[str, object]:
    """A JSON object; ImageError for what is no JSON, nothing for another value."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ImageError(f"the registry serves no JSON: {error}") from error
    return found if isinstance(found, dict) else {}
