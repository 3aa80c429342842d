"""Talking with a registry (distribution-spec 1.1): who we are, tokens that run out, patience, nothing in the clear."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from torchkiln import network
from torchkiln.errors import FetchError
from torchkiln.oci import account as accounts
from torchkiln.oci import challenge as challenges
from torchkiln.oci.answer import LARGEST_MANIFEST, SAID, AgainError, bounded, parsed, patience, refusal, unreached
from torchkiln.oci.reference import LOOPBACK
from torchkiln.pace import FLOOR

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from torchkiln.errors import TorchkilnError
    from torchkiln.oci.account import Account
    from torchkiln.oci.challenge import Challenge
    from torchkiln.oci.reference import Repository

    Content = bytes | Callable[[], Iterable[bytes]]
    """What is sent: as a whole, or in pieces from the beginning each time."""

_T = TypeVar("_T")
CONNECTIONS = 4
TRIES = 5
"""In a row without progress, of which next to nothing is none."""
RETRIED = {408, 429, 500, 502, 503, 504}
KEPT = (httpx.codes.TEMPORARY_REDIRECT, httpx.codes.PERMANENT_REDIRECT)
"""Redirects that leave method and content as they are (RFC 9110, 15.4.8 and 15.4.9)."""
FOUND = (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT)
BRIEF = httpx.Timeout(10)
"""For tidying up, which nobody waits for longer, and which alone goes on when somebody has hung up."""


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
    arrived: bool = False
    """Whether anything has that another run need not transfer again."""
    token: str = field(default="", repr=False)
    _halted: threading.Event = field(default_factory=threading.Event)
    _lines: list[Any] = field(default_factory=list, repr=False)
    """Every connection that was opened, as httpcore's streams."""
    _basic: str = field(default="", repr=False)
    _who: str = ""
    """What is to be said of the credentials that were looked for last."""
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
                fruitless = 1 if progress() - before >= FLOOR else fruitless + 1
                if fruitless >= TRIES:
                    said = unreached(error) or f"{what}: {str(error) or type(error).__name__}"
                    again = "run it again" + (": what has arrived is kept" if self.arrived else "")
                    remedy = f"check the registry's name and the network, then {again}"
                    raise self.failure(said, where=self.where, remedy=remedy) from error
                (self.sleep or self._halted.wait)(getattr(error, "wait", 0) or 0.5 * 2 ** (fruitless - 1))

    @contextmanager
    def ask(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str] | None = None,
        *,
        content: Content = b"",
        good: Collection[int] = FOUND,
        timeout: httpx.Timeout | None = None,
    ) -> Iterator[httpx.Response]:
        """A good response, after at most a round for a password or two for tokens; AgainError or `failure` if none.

        Two, since a token that was good for other threads' requests may run out before it is shown.

        Other places are shown no credentials, not even their own: the registry chose what is asked of them.
        What is streamed isn't sent twice to one place: AgainError asks for it anew, from where the registry has it.
        """
        once, tidying = not isinstance(content, bytes), timeout is BRIEF
        for rounds in (2, 1, 0):
            if not tidying:
                self.go_on()
            shown = self._shown(address)
            request = self.client.build_request(
                method,
                address,
                headers={**(headers or {}), **shown},
                content=_begun(content),
                timeout=timeout or self.client.timeout,
                extensions={"trace": partial(self._traced, tidying=tidying)},
            )
            with self._sent(request, content) as response:
                own = self._own(response.url)
                wanted = challenges.parse(response.headers.get("WWW-Authenticate", "") if own else "")
                expired = response.status_code == httpx.codes.UNAUTHORIZED
                if expired and once:
                    raise AgainError("the registry wants another token")
                renewable = rounds > 1 or (rounds == 1 and wanted.kind == "bearer")
                if not (expired and renewable and wanted.kind):
                    self._judge(response, f"{method} {httpx.URL(address).path}", good)
                    yield response
                    return
            self._identify(wanted, shown, tidying=tidying)  # with no connection held: another is needed

    @contextmanager
    def _sent(self, request: httpx.Request, content: Content | None = None) -> Iterator[httpx.Response]:
        """The answer to a request, where redirects lead; each is looked at before it is followed.

        What doesn't only ask goes on where it may stay what it is, with its content from the beginning; without one,
        nowhere.
        What a redirect says besides may have no end; if it is short it is read, so that the connection is of use again.
        """
        for _ in range(network.MOST_HOPS):
            self.secure(request.url)
            response = self.client.send(request, auth=httpx.Auth(), stream=True)
            with closing(response):
                goes_on = request.method in {"GET", "HEAD"} or (content is not None and response.status_code in KEPT)
                if response.next_request is None or not goes_on:
                    yield response
                    return
                if not response.is_stream_consumed:
                    network.bounded(response.iter_raw(), SAID)
                request = self._again(response.next_request, content)
        raise httpx.TooManyRedirects("Exceeded maximum allowed redirects.", request=request)

    def _again(self, request: httpx.Request, content: Content | None) -> httpx.Request:
        """What httpx makes of a redirect, which has the old content, with that from its beginning."""
        return self.client.build_request(
            request.method,
            request.url,
            headers=request.headers,
            content=_begun(content or b""),
            extensions=request.extensions,
        )

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
        """End all requests, also those that wait for an answer; only those that tidy up can be made after."""
        if self._halted.is_set():
            return  # what tidies up is let be
        self._halted.set()
        for line in tuple(self._lines):
            _shut(line)

    def _traced(self, event: str, about: Mapping[str, Any], *, tidying: bool) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._lines.append(about["return_value"])
            if self._halted.is_set() and not tidying:  # it was being made meanwhile
                _shut(about["return_value"])

    def _shown(self, address: str) -> dict[str, str]:
        """Who we are, for the registry alone: an upload may lead to another host."""
        if not self._own(httpx.URL(address)):
            return {}
        shown = f"Bearer {self.token}" if self.token else self._basic
        return {"Authorization": shown} if shown else {}

    def _own(self, address: httpx.URL) -> bool:
        home = httpx.URL(self.reference.address)
        return (home.scheme, home.host, home.port) == (address.scheme, address.host, address.port)

    def _identify(self, wanted: Challenge, shown: Mapping[str, str], *, tidying: bool) -> None:
        """Get what the registry wants to see, unless another thread has got it meanwhile.

        Credentials are looked for each time: those of a helper may run out too.
        """
        with self._identifying:
            now = f"Bearer {self.token}" if self.token else self._basic
            if now != shown.get("Authorization", ""):
                return
            if not tidying:
                self.go_on()  # while another thread was about it, somebody may have hung up
            account = accounts.find(self.environment, self.reference.host)
            self._who = account.said
            if wanted.kind == "bearer":
                self.token = self._asked(wanted, account, tidying=tidying)
            elif wanted.kind == "basic":
                self._basic = account.basic

    def _judge(self, response: httpx.Response, what: str, good: Collection[int] = FOUND) -> None:
        status = response.status_code
        if status in RETRIED and status not in good:
            raise AgainError(f"the registry answers {status} {response.reason_phrase}", patience(response))
        if status not in good:
            told, remedy = refusal(response, what, self.reference.host, self._who)
            raise self.failure(told, where=self.where, remedy=remedy)

    def _asked(self, challenge: Challenge, account: Account, *, tidying: bool) -> str:
        """A token, with the registry's credentials if there are any (distribution's token documents).

        No others are sent, whatever place the registry names: the answer becomes a token that the registry is shown.
        """
        scopes = self.scopes or (challenge.stated.get("scope") or f"repository:{self.reference.repository}:pull",)
        try:
            question = challenges.question(challenge, account, scopes)
        except httpx.InvalidURL as error:
            raise self.failure(f"the registry names no place for tokens: {error}", where=self.where) from error
        trace = {"trace": partial(self._traced, tidying=tidying)}
        timeout = BRIEF if tidying else self.client.timeout
        with self._sent(self.client.build_request(timeout=timeout, extensions=trace, **question)) as response:
            self._judge(response, "token")
            token = challenges.token(parsed(bounded(response, LARGEST_MANIFEST)))
        if not token:
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


def _begun(content: Content) -> bytes | Iterable[bytes] | None:
    return (content if isinstance(content, bytes) else content()) or None


def _shut(line: Any) -> None:  # noqa: ANN401  httpcore's stream
    with suppress(OSError):  # most have been closed
        socket.socket.shutdown(line.get_extra_info("socket"), socket.SHUT_RDWR)
