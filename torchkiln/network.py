"""HTTP as this machine wants it: proxies, one CA setting for every fetcher, and credentials where they are asked for.

Nothing here is ever written to a layer, a label or a log; `errors.redact` keeps secrets out of messages.
"""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

import httpx

from torchkiln import credentials, pace
from torchkiln.errors import FetchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
"""Where a private CA is named, in order; each client reads another one of them."""
TIMEOUT = httpx.Timeout(60, connect=20)
"""`pace` says what it means of reading."""
WHOLE = 300
"""Seconds in which what is read as a whole must be there: 4 MiB of a manifest need 14 KB of them each."""
HERE = ("127.0.0.1", "localhost", "[::1]")
"""Asked without a proxy, as Go's programs do: another machine would hear in the clear what is meant for this one."""
MOST_HOPS = 20
"""Redirects one after the other."""


def certificates(environment: Mapping[str, str]) -> str:
    """The CA bundle that the environment names first; empty if none."""
    return next((environment[name] for name in CERTIFICATES if environment.get(name)), "")


def trust(environment: Mapping[str, str]) -> ssl.SSLContext:
    """What to trust: the named bundle, else the system's; verification is never switched off."""
    return ssl.create_default_context(cafile=certificates(environment) or None)


def client(environment: Mapping[str, str], *, connections: int, follow: bool = True) -> httpx.Client:
    """A client for many threads; httpx itself reads HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.

    What is on this machine is asked without a proxy. Redirects are judged and followed, unless with `follow` False the
    caller does both.
    """
    made = httpx.Client(
        auth=_authorise(environment),
        verify=trust(environment),
        timeout=TIMEOUT,
        follow_redirects=follow,
        max_redirects=MOST_HOPS,
        event_hooks={"response": [_judge] if follow else []},
        mounts={f"all://{host}": None for host in HERE},
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        headers={"User-Agent": "torchkiln", "Accept-Encoding": "identity"},
    )
    for transport in (made._transport, *made._mounts.values()):  # noqa: SLF001  httpx hands httpcore no backend
        if isinstance(transport, httpx.HTTPTransport):
            transport._pool._network_backend = pace.Backend()  # noqa: SLF001  same
    return made


def _authorise(environment: Mapping[str, str]) -> Callable[[httpx.Request], httpx.Request]:
    """Add basic credentials where there are some, looked for once; httpx drops them when redirected to another host."""
    found = cache(lambda address: credentials.find(environment, address))

    def authorise(request: httpx.Request) -> httpx.Request:
        pair = found(str(request.url.copy_with(raw_path=b"/")))
        if pair and "Authorization" not in request.headers:
            signed = httpx.BasicAuth(*pair).auth_flow(request)
            return next(signed)
        return request

    return authorise


def _judge(response: httpx.Response) -> None:
    """FetchError for a redirect from HTTPS to what is not, or from elsewhere to this machine, before it is followed."""
    with suppress(httpx.InvalidURL):  # which httpx tells
        here, there = response.url, response.url.join(response.headers.get("Location", ""))
        local = [host.strip("[]") for host in HERE]
        plain = here.scheme == "https" and there.scheme != "https"
        if response.has_redirect_location and (plain or (there.host in local and here.host not in local)):
            what = f"{here.host} leads to {'plain HTTP' if plain else 'this machine'}"
            raise FetchError(what, where=there.host, remedy="ask who runs it, or use another index")


def bounded(pieces: Iterable[bytes], limit: int, clock: Callable[[], float] = time.monotonic) -> bytes | None:
    """A body as it comes, whole; None as soon as it has more than `limit` bytes. ReadTimeout if it takes too long."""
    data, end = bytearray(), clock() + WHOLE
    for piece in pieces:
        data += piece
        if len(data) > limit:
            return None
        if clock() > end:
            raise httpx.ReadTimeout(f"{len(data)} bytes in {WHOLE} seconds, and no end")
    return bytes(data)
