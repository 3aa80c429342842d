"""Errors, and all that is said meanwhile, may quote what somebody wrote, but no password in it."""

from __future__ import annotations

import pickle

import pytest

from torchkiln import console
from torchkiln.errors import MatrixError, redact

SECRETS = [
    "http://u:secretpw@x.invalid/a.whl",
    "https://u:secretpw@x/a.whl#sha256=00",
    "git+https://u:secretpw@x/y@v1",
    "six ; https://u:secretpw@x",
    "https://u:secret/pw@x/a.whl",
    "https://u:secret pw@x/a.whl",
    "https://secretpw@x",
    "//u:secretp@ss@x/y",
    "one, 'https://a:secretpw@x' and https://b:secretpw@y",
]


@pytest.mark.parametrize("text", SECRETS)
def test_no_error_repeats_a_password(text: str) -> None:
    """Not in what failed, nor where, nor in what to try; also not after it has come from another process."""
    error = MatrixError(f"{text!r} is wrong", where=text, remedy=f"not {text}")
    for one in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301  our own
        for told in (str(one), repr(one), one.what, one.where, one.remedy):
            assert "secret" not in told
        assert str(one).count("***@") >= 3


def test_no_progress_repeats_a_password(capsys: pytest.CaptureFixture[str]) -> None:
    """Notes, warnings and steps are redacted too."""
    console.note("a https://u:secretpw@x")
    console.warn("b https://u:secretpw@x")
    with console.step("c https://u:secretpw@x"):
        pass
    told = capsys.readouterr().err
    assert "secret" not in told
    assert told.count("https://***@x") == 4


@pytest.mark.parametrize(
    "text",
    [
        f"docker://127.0.0.1:5000/a/b@sha256:{'0' * 64}",
        "app @ https://example.org/a.whl, said me@example.org",
        "no connection to https://example.org:443; try it @ home",
        "https://***@example.org/a@b",
    ],
)
def test_the_rest_of_a_message_stays(text: str) -> None:
    """What has no password is told as it is, digests and what was redacted before among it."""
    assert redact(text) == text


def test_messages_lose_their_secrets() -> None:
    """User and password vanish from addresses; the rest of a message stays."""
    assert redact("GET https://me:secret@host/x failed at 12:30") == "GET https://***@host/x failed at 12:30"
    assert redact("https://me:p@ss@host/a@b and //you@two/") == "https://***@host/a@b and //***@two/"
