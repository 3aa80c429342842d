"""Talking with a registry (distribution-spec 1.1): who we are, tokens that run out, patience, nothing in the clear."""

from __future__ import annotations

import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from torchkiln import network
from torchkiln.errors import FetchError
from torchkiln.oci import account as accounts
from torchkiln.oci.answer import LARGEST_MANIFEST, AgainError, bounded, parsed, patience, said, unreached
from torchkiln.oci.reference import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from torchkiln.errors import TorchkilnError
    from torchkiln.oci.account import Account
    from torchkiln.oci.reference import Repository

_T = TypeVar("_T")
CONNECTIONS = 4
TRIES = 5
"""In a row without progress."""
RETRIED = {408, 429, 500, 502, 503, 504}
FOUND = (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT)
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What may stand after `Bearer` (RFC 6750, 2.1)."""


class HaltedError(Exception):
    """Something else has failed, or nobody waits any more."""


@dataclass(slots=True, kw_only=True)
class Session:
    """One repository of a registry, over connections that threads share."""

    reference: Repository
    client: httpx.Client
    environment: Mapping[str, str]
    sleep: Callable[[float], object] | None = None
    """How to wait; by default until `hang_up` at most."""
    scopes: tuple[str, ...] = ()
    """What tokens are asked for; empty for what the registry names."""
    failure: type[TorchkilnError] = FetchError
    """What is raised when the registry can't be had."""
    token: str = field(default="", repr=False)
    _halted: threading.Event = field(default_factory=threading.Event)
    _lines: list[Any] = field(default_factory=list, repr=False)
    """Every connection that was opened, as httpcore's streams."""
    _basic: str = field(default="", repr=False)
    _identifying: threading.Lock = field(default_factory=threading.Lock)

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.reference.host}/{self.reference.repository}"

    def persist(self, what: str, act: Callable[[], _T], progress: Callable[[], int] = lambda: 0) -> _T:
        """Try until it succeeds, or until nothing more comes; HaltedError as soon as somebody hangs up."""
        fruitless = 0
        while True:
            self.go_on()
            before = progress()
            try:
                return act()
            except (AgainError, httpx.RequestError) as error:
                self.go_on()
                fruitless = 1 if progress() > before else fruitless + 1
                if fruitless >= TRIES:
                    said = unreached(error) or f"{what}: {network.redact(str(error) or type(error).__name__)}"
                    remedy = "check the registry's name and the network, then run it again: what has arrived is kept"
                    raise self.failure(said, where=self.where, remedy=remedy) from error
                (self.sleep or self._halted.wait)(getattr(error, "wait", 0) or 0.5 * 2 ** (fruitless - 1))

    @contextmanager
    def ask(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str] | None = None,
        *,
        content: bytes | Iterable[bytes] = b"",
        good: Collection[int] = FOUND,
        timeout: httpx.Timeout = network.TIMEOUT,
    ) -> Iterator[httpx.Response]:
        """A good response, after at most a round for a password or two for tokens; AgainError or `failure` if none.

        Two, since a token that was good for other threads' requests may run out before it is shown.

        Other places are shown no credentials, not even their own: the registry chose what is asked of them.
        What is streamed can't be sent twice: AgainError asks for it anew, from where the registry has it.
        """
        self.secure(httpx.URL(address))
        once = not isinstance(content, bytes)
        for rounds in (2, 1, 0):
            shown = self._shown(address)
            options = {
                "headers": {**(headers or {}), **shown},
                "content": content or None,
                "timeout": timeout,
                "follow_redirects": method in {"GET", "HEAD"},
                "auth": httpx.Auth(),
                "extensions": {"trace": self._traced},
            }
            with self.client.stream(method, address, **options) as response:  # type: ignore[arg-type]
                challenge = response.headers.get("WWW-Authenticate", "") if self._own(response.url) else ""
                expired = response.status_code == httpx.codes.UNAUTHORIZED
                if expired and once:
                    raise AgainError("the registry wants another token")
                renewable = rounds > 1 or (rounds == 1 and challenge.lower().startswith("bearer "))
                if not (expired and renewable and challenge):
                    self._judge(response, f"{method} {httpx.URL(address).path}", good)
                    yield response
                    return
            self._identify(challenge, shown)  # with no connection held: another is needed

    def go_on(self) -> None:
        """HaltedError if somebody has hung up."""
        if self._halted.is_set():
            raise HaltedError

    @contextmanager
    def threads(self) -> Iterator[ThreadPoolExecutor]:
        """Threads that ask the registry; whoever leaves with an error gives up what they are about."""
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            try:
                yield pool
            except BaseException:
                self.hang_up()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def hang_up(self) -> None:
        """End all requests, also those that wait for an answer; only single ones, to tidy up, can be made after."""
        if self._halted.is_set():
            return  # what tidies up is let be
        self._halted.set()
        for line in tuple(self._lines):
            with suppress(OSError):  # most have been closed
                socket.socket.shutdown(line.get_extra_info("socket"), socket.SHUT_RDWR)

    def _traced(self, event: str, about: Mapping[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._lines.append(about["return_value"])

    def _shown(self, address: str) -> dict[str, str]:
        """Who we are, for the registry alone: an upload may lead to another host."""
        if not self._own(httpx.URL(address)):
            return {}
        shown = f"Bearer {self.token}" if self.token else self._basic
        return {"Authorization": shown} if shown else {}

    def _own(self, address: httpx.URL) -> bool:
        home = httpx.URL(self.reference.address)
        return (home.scheme, home.host, home.port) == (address.scheme, address.host, address.port)

    def _identify(self, challenge: str, shown: Mapping[str, str]) -> None:
        """Get what the registry wants to see, unless another thread has got it meanwhile.

        Credentials are looked for each time: those of a helper may run out too.
        """
        with self._identifying:
            now = f"Bearer {self.token}" if self.token else self._basic
            if now != shown.get("Authorization", ""):
                return
            account = accounts.find(self.environment, self.reference.host)
            kind = challenge.partition(" ")[0].lower()  # a scheme's case doesn't matter (RFC 9110, 11.1)
            if kind == "bearer":
                self.token = self._asked(dict(re.findall(r'(\w+)="([^"]*)"', challenge)), account)
            elif kind == "basic":
                self._basic = account.basic

    def _judge(self, response: httpx.Response, what: str, good: Collection[int] = FOUND) -> None:
        status = response.status_code
        for one in (*response.history, response):
            self.secure(one.url)
        if status in good:
            return
        if status in RETRIED:
            raise AgainError(f"the registry answers {status} {response.reason_phrase}", patience(response))
        answer = f"{status} {response.reason_phrase}{said(response)}"
        if status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
            remedy = (
                f"`docker login {self.reference.host}`, or put its user and password into ~/.netrc, "
                "or into the file $NETRC names"
            )
            raise self.failure(f"the registry refuses: {answer}", where=self.where, remedy=remedy)
        if status == httpx.codes.METHOD_NOT_ALLOWED and response.request.method in {"POST", "PATCH", "PUT"}:
            remedy = "it may be read-only, or a mirror of another registry: push to one that takes images"
            raise self.failure(f"the registry takes no uploads: {what}: {answer}", where=self.where, remedy=remedy)
        remedy = "compare the image's name with what the registry has"
        raise self.failure(f"{what}: {answer}", where=self.where, remedy=remedy)

    def _asked(self, challenge: Mapping[str, str], account: Account) -> str:
        """A token, with the registry's credentials if there are any (distribution's token documents).

        No others are sent, whatever place the registry names: the answer becomes a token that the registry is shown.
        """
        try:
            realm = httpx.URL(challenge.get("realm", ""))
        except httpx.InvalidURL as error:
            raise self.failure(f"the registry names no place for tokens: {error}", where=self.where) from error
        self.secure(realm)
        scopes = self.scopes or (challenge.get("scope") or f"repository:{self.reference.repository}:pull",)
        asked = {name: challenge[name] for name in ("service",) if name in challenge}
        if account.identity:
            grant = {"grant_type": "refresh_token", "refresh_token": account.identity, "client_id": "torchkiln"}
            request = self.client.build_request("POST", realm, data={**asked, **grant, "scope": " ".join(scopes)})
        else:
            request = self.client.build_request("GET", realm, params={**asked, "scope": list(scopes)})
        auth = httpx.BasicAuth(account.user, account.password) if account.password else httpx.Auth()
        # a redirected POST would take the refresh token to another host
        response = self.client.send(request, auth=auth, stream=True, follow_redirects=request.method == "GET")
        with closing(response):
            self._judge(response, "token")
            found = parsed(bounded(response, LARGEST_MANIFEST))
        token = str(found.get("token") or found.get("access_token") or "")
        if not _TOKEN.fullmatch(token):
            raise self.failure("the registry hands out what is no token", where=self.where)
        return token

    def secure(self, address: httpx.URL) -> None:
        """Neither a token nor a blob travels in the clear, but on this machine, where only its own registries lead."""
        local = address.host in LOOPBACK
        if local and not self.reference.local:
            remedy = "ask who runs it: no other machine has a reason to"
            raise self.failure("the registry leads to this machine", where=self.where, remedy=remedy)
        told = self.reference.plain and address.host == self.reference.machine
        if address.scheme != "https" and not local and not told:
            remedy = "use a registry that has HTTPS"
            raise self.failure("the registry leads to plain HTTP", where=address.host, remedy=remedy)
