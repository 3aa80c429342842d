"""What a registry wants to see is understood in every form that it may be said in."""

from __future__ import annotations

import httpx
import pytest

from torchkiln.oci import challenge as challenges
from torchkiln.oci.account import Account
from torchkiln.oci.challenge import Challenge

BEARER = Challenge(kind="bearer", stated={"realm": "https://one.example/t", "service": "x"})


@pytest.mark.parametrize(
    "header",
    [
        'Bearer realm="https://one.example/t",service="x"',
        'bearer  realm = "https://one.example/t" , Service=x',
        'Bearer realm="https://one.example/t",service="x", Basic realm="a password"',
        'Basic realm="a password", Bearer realm="https://one.example/t",service="x"',
        'Negotiate, Bearer realm="https://one.example/t",service="x"',
        'Digest realm="say, Bearer realm=\\"y\\"", nonce=a, Bearer realm="https://one.example\\/t",service="x"',
    ],
)
def test_one_of_several_is_chosen_with_its_own_parameters(header: str) -> None:
    """A token goes before a password; what belongs to another scheme plays no part."""
    assert challenges.parse(header) == BEARER


def test_what_is_not_known_is_no_challenge() -> None:
    """Nor is what makes no sense, of whatever length."""
    assert challenges.parse('BASIC realm="x"') == Challenge(kind="basic", stated={"realm": "x"})
    for header in ("", "Negotiate", 'Digest realm="x"', "=", '"', "," * 50_000, "a" * 50_000, '="' * 50_000):
        assert challenges.parse(header) == Challenge()


def test_a_place_for_tokens_keeps_its_own_query() -> None:
    """What is asked comes beside it."""
    wanted = Challenge(kind="bearer", stated={"realm": "https://one.example/t?tenant=a", "service": "x"})
    asked = challenges.question(wanted, Account(), ["one", "two"])
    assert httpx.URL(asked["url"]).params.multi_items() == [
        ("tenant", "a"),
        ("service", "x"),
        ("scope", "one"),
        ("scope", "two"),
    ]
