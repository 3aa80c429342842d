"""HTTP as this machine wants it: proxies, one CA setting for every fetcher, credentials from netrc or the index.

Nothing here is ever written to a layer, a label or a log; `redact` keeps secrets out of messages.
"""

from __future__ import annotations

import netrc
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
"""Where a private CA is named, in order; each client reads another one of them."""
INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL")
TIMEOUT = httpx.Timeout(60, connect=20)


def certificates(environment: Mapping[str, str]) -> str:
    """The CA bundle that the environment names first; empty if none."""
    return next((environment[name] for name in CERTIFICATES if environment.get(name)), "")


def trust(environment: Mapping[str, str]) -> ssl.SSLContext:
    """What to trust: the named bundle, else the system's; verification is never switched off."""
    return ssl.create_default_context(cafile=certificates(environment) or None)


def client(environment: Mapping[str, str], *, connections: int) -> httpx.Client:
    """A client for many threads; httpx itself reads HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."""
    return httpx.Client(
        auth=_authorise(environment),
        verify=trust(environment),
        timeout=TIMEOUT,
        follow_redirects=True,
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        headers={"User-Agent": "torchkiln", "Accept-Encoding": "identity"},
    )


def _authorise(environment: Mapping[str, str]) -> Callable[[httpx.Request], httpx.Request]:
    """Add basic credentials for hosts that have some; httpx drops them when redirected to another host."""

    def authorise(request: httpx.Request) -> httpx.Request:
        found = credentials(environment, request.url.host)
        if found and "Authorization" not in request.headers:
            signed = httpx.BasicAuth(*found).auth_flow(request)
            return next(signed)
        return request

    return authorise


def credentials(environment: Mapping[str, str], host: str) -> tuple[str, str] | None:
    """User and password for a host, from netrc ($NETRC, ~/.netrc) or from an index address that names them."""
    file = Path(environment.get("NETRC") or Path(environment.get("HOME", "/")) / ".netrc")
    try:
        entry = netrc.netrc(file).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        entry = None
    if entry:
        return entry[0], entry[2]
    addresses = (urlsplit(word) for name in INDEXES for word in environment.get(name, "").split())
    named = next((address for address in addresses if address.hostname == host and address.username), None)
    return (unquote(named.username or ""), unquote(named.password or "")) if named else None


def redact(text: str) -> str:
    """A message without user names and passwords in addresses."""
    return re.sub(r"//[^/@\s]+@", "//***@", text)
