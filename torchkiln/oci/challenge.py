"""What a registry wants to see of who asks it (RFC 9110, 11.6.1), and how a token is asked for and answered.

By distribution's "Token Authentication Specification" and "Docker Registry v2 authentication using OAuth2".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchkiln.oci.account import Account

_WORD = r"[\w!#$%&'*+.^`|~-]+"
_NEXT = re.compile(
    rf'[\s,]*(?:(?P<name>{_WORD})\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>{_WORD}))|(?P<kind>{_WORD}))'
)
"""A parameter, or the scheme of another challenge."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What may stand after `Bearer` (RFC 6750, 2.1)."""
KINDS = ("bearer", "basic")
"""Schemes that are known, the better first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """What is wanted."""

    kind: str = ""
    """Of `KINDS`; empty for none that is known."""
    stated: Mapping[str, str] = field(default_factory=dict)


def parse(header: str) -> Challenge:
    """The best of a `WWW-Authenticate`: several may stand in one, or in several that were joined.

    A scheme's case doesn't matter (RFC 9110, 11.1); what follows something odd is not read.
    """
    found: dict[str, dict[str, str]] = {}
    stated: dict[str, str] = {}
    at = 0
    while one := _NEXT.match(header, at):
        at = one.end()
        if one["kind"]:
            stated = found.setdefault(one["kind"].lower(), {})
        else:
            stated[one["name"].lower()] = one["bare"] or re.sub(r"\\(.)", r"\1", one["quoted"] or "")
    return next((Challenge(kind=kind, stated=found[kind]) for kind in KINDS if kind in found), Challenge())


def question(challenge: Challenge, account: Account, scopes: Sequence[str]) -> dict[str, Any]:
    """What to ask the place for tokens, as httpx has it; httpx.InvalidURL if none is named.

    A refresh token goes in a POST, which no redirect takes to another host.
    """
    realm = httpx.URL(challenge.stated.get("realm", ""))
    asked = {name: challenge.stated[name] for name in ("service",) if name in challenge.stated}
    if account.identity:
        grant = {"grant_type": "refresh_token", "refresh_token": account.identity, "client_id": "torchkiln"}
        return {"method": "POST", "url": realm, "data": {**asked, **grant, "scope": " ".join(scopes)}}
    shown = {"Authorization": account.basic} if account.basic else {}
    return {"method": "GET", "url": realm.copy_merge_params({**asked, "scope": list(scopes)}), "headers": shown}


def token(answer: Mapping[str, object]) -> str:
    """What was handed out; empty if that is no token."""
    found = str(answer.get("token") or answer.get("access_token") or "")
    return found if _TOKEN.fullmatch(found) else ""
