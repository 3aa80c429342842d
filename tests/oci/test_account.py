"""Who we are at a registry is what `docker login` keeps for it, else what netrc has."""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from torchkiln import credentials
from torchkiln.oci import account
from torchkiln.oci.account import NOBODY, Account

if TYPE_CHECKING:
    from pathlib import Path

HELPER = """#!/bin/sh
read -r server
case "$1 $server" in
  "get one.example") echo '{"Username": "me", "Secret": "mine"}' ;;
  "get two.example:8443") echo '{"Username": "<token>", "Secret": "renewable"}' ;;
  "get three.example") echo 'sesame is locked' ; exit 1 ;;
  "get four.example") echo 'not JSON' ;;
  "get five.example") exec sleep 600 ;;
  *) echo 'credentials not found in native keychain' ; exit 1 ;;
esac
"""


def told(folder: Path, config: object, netrc: str = "") -> dict[str, str]:
    """An environment with a config of Docker's and a netrc."""
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "netrc").write_text(netrc)
    return {
        "DOCKER_CONFIG": str(folder),
        "NETRC": str(folder / "netrc"),
        "HOME": str(folder),
        "PATH": os.environ["PATH"],
    }


def pair(text: str) -> dict[str, Any]:
    """An entry of Docker's config."""
    return {"auth": base64.b64encode(text.encode()).decode()}


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program as `docker-credential-…` are."""
    program = tmp_path / "docker-credential-toy"
    program.write_text(HELPER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_what_docker_keeps_goes_before_netrc(tmp_path: Path) -> None:
    """Each registry with its port gets its own; the hub is found under the name that Docker has for it."""
    config = {
        "auths": {
            "one.example": pair("me:mine:too"),
            "https://two.example:8443/v2/": pair("you:yours"),
            "https://index.docker.io/v1/": pair("they:theirs"),
            "three.example": {**pair("me:mine"), "identitytoken": "renewable"},
        }
    }
    netrc = "machine one.example login netrc password word\nmachine four.example login netrc password word\n"
    environment = told(tmp_path, config, netrc)
    assert account.find(environment, "one.example") == Account(user="me", password="mine:too")  # noqa: S106  a toy's
    assert account.find(environment, "two.example:8443").user == "you"
    assert account.find(environment, "docker.io").user == "they"
    assert account.find(environment, "three.example") == Account(identity="renewable")
    assert account.find(environment, "four.example").user == "netrc"
    assert account.find(environment, "two.example") == NOBODY


def test_the_file_is_where_docker_looks(tmp_path: Path) -> None:
    """In the folder .docker at home, if $DOCKER_CONFIG names none; a missing one is nobody's."""
    home = tmp_path / "home"
    (home / ".docker").mkdir(parents=True)
    environment = {"HOME": str(home)}
    assert account.find(environment, "one.example") == NOBODY
    (home / ".docker/config.json").write_text(json.dumps({"auths": {"one.example": pair("me:mine")}}))
    assert account.find(environment, "one.example").user == "me"


@pytest.mark.usefixtures("helper")
def test_helpers_are_asked(tmp_path: Path) -> None:
    """For all registries or for one; a helper that knows nothing leaves the word to netrc."""
    netrc = "machine seven.example login netrc password word\n"
    environment = told(tmp_path, {"credsStore": "toy"}, netrc)
    assert account.find(environment, "one.example") == Account(user="me", password="mine")  # noqa: S106  a toy's
    assert account.find(environment, "two.example:8443") == Account(identity="renewable")
    assert account.find(environment, "seven.example").user == "netrc"
    environment = told(tmp_path, {"credHelpers": {"one.example": "toy"}, "auths": {"six.example": pair("a:b")}})
    assert account.find(environment, "one.example").user == "me"
    assert account.find(environment, "six.example").user == "a"


@pytest.mark.usefixtures("helper")
@pytest.mark.parametrize(
    "config",
    [
        {"credHelpers": {"three.example": "toy"}},
        {"credHelpers": {"three.example": "missing"}},
        {"credHelpers": ["three.example"]},
        {"auths": {"three.example": {"auth": "no base64"}}},
        {"auths": {"three.example": "me"}},
        {"credHelpers": {"three.example": "toy"}, "auths": []},
    ],
)
def test_what_cannot_be_read_is_warned_of(
    tmp_path: Path, config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Netrc has the word then; what a helper said is shown to nobody, since it may be a secret."""
    environment = told(tmp_path, config, "machine three.example login netrc password word\n")
    assert account.find(environment, "three.example").user == "netrc"
    said = capsys.readouterr().err
    assert "three.example" in said
    assert "sesame" not in said


def test_secrets_are_in_no_text() -> None:
    """Whoever prints an account sees its user alone."""
    known = Account(user="me", password="mine", identity="renewable")  # noqa: S106  a toy's
    assert "mine" not in repr(known)
    assert "renewable" not in repr(known)
    assert known.basic == "Basic " + base64.b64encode(b"me:mine").decode()


@pytest.mark.usefixtures("helper")
@pytest.mark.parametrize("host", ["four.example", "five.example"])
def test_a_helper_that_hangs_or_babbles_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """As when it waits for somebody to unlock it who is not there."""
    monkeypatch.setattr(credentials, "PATIENCE", 0.2)
    environment = told(tmp_path, {"credsStore": "toy"}, f"machine {host} login netrc password word\n")
    assert account.find(environment, host).user == "netrc"
