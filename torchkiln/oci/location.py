"""Where an upload is at a registry, and how far (distribution-spec, "Pushing blobs"); how it is given up."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx

from torchkiln.errors import TorchkilnError
from torchkiln.oci.answer import AgainError
from torchkiln.oci.session import BRIEF

if TYPE_CHECKING:
    from torchkiln.oci.session import Session


def permitted(session: Session) -> None:
    """The session's failure unless the repository takes blobs: an upload is begun and given up, nothing else tells."""

    def ask() -> None:
        with session.ask("POST", f"{session.reference.address}/blobs/uploads/", good={202}) as response:
            place = located(session, response, "")
        cancel(session, place)

    session.persist("an upload", ask)


def cancel(session: Session, place: str) -> None:
    """Give up an upload ("Canceling an Upload"); registries that can't do that forget it in time."""
    good = {200, 202, 204, 404, 405}
    with (
        suppress(AgainError, httpx.RequestError, TorchkilnError),
        session.ask("DELETE", place, good=good, timeout=BRIEF),
    ):
        pass


def located(session: Session, response: httpx.Response, before: str) -> str:
    """Where an upload goes on; a new Location may be relative, and may not be in the clear."""
    stated = response.headers.get("Location", before)
    try:
        address = httpx.URL(str(response.url)).join(stated)
    except httpx.InvalidURL as error:
        what = f"the registry names no place for uploads: {error}"
        raise session.failure(what, where=session.where) from error
    if not stated:
        raise session.failure("the registry names no place for uploads", where=session.where)
    session.secure(address)
    return str(address)


def reported(response: httpx.Response) -> int | None:
    """How many bytes the registry has, by its Range header `0-LAST`; None if it doesn't say.

    What has nothing says `0-0`, and so does what has one byte: no chunk of ours is that small.
    """
    found = re.fullmatch(r"(?:bytes=)?0-(\d{1,15})", response.headers.get("Range", ""))
    last = int(found[1]) if found else None
    return last + 1 if last else last
