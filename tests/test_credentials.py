from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from torchkiln import credentials

if TYPE_CHECKING:
    from pathlib import Path

KEYRING = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
case "$*" in
  "get https://two.example/simple me") echo of-the-index ;;
  "get three.example:8443 me") echo of-the-host ;;
  "--mode creds get https://four.example/simple") printf 'they\\ntheirs\\n' ;;
  *) exit 1 ;;
esac
"""


def with_keyring(folder: Path, **settings: str) -> dict[str, str]:
    """An environment with a program `keyring`."""
    program = folder / "keyring"
    program.write_text(KEYRING)
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "UV_KEYRING_PROVIDER": "subprocess", **settings}


def test_credentials_come_from_netrc_then_from_the_index(tmp_path: Path) -> None:
    """A host gets its own user and password; another host gets none."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine one.example login me password mine\n")
    environment = {"NETRC": str(netrc), "UV_INDEX": "https://you:your%40s@two.example/simple https://three.example/"}
    assert credentials.find(environment, "https://one.example/x.whl") == ("me", "mine")
    assert credentials.find(environment, "https://two.example/files/x.whl") == ("you", "your@s")
    assert credentials.find(environment, "https://three.example/") is None
    assert credentials.find({"HOME": str(tmp_path)}, "https://one.example/") is None


def test_credentials_of_an_index_serve_its_scheme_host_and_port_alone() -> None:
    """What is told to one server is told to no other, even on the same host, and never in the clear."""
    environment = {"UV_INDEX": "https://you:yours@one.example/simple"}
    assert credentials.find(environment, "https://one.example:443/x") == ("you", "yours")
    for other in ("http://one.example/x", "https://one.example:8443/x", "https://one.example.org/x"):
        assert credentials.find(environment, other) is None


def test_a_named_index_has_its_credentials_in_the_environment(tmp_path: Path) -> None:
    """UV_INDEX_<NAME>_USERNAME and _PASSWORD, whether the environment or uv's file names the index."""
    file = tmp_path / "uv.toml"
    file.write_text('[[index]]\nname = "in-file"\nurl = "https://two.example/simple"\n')
    environment = {
        "UV_CONFIG_FILE": str(file),
        "UV_INDEX": "own.one=https://one.example/simple",
        "UV_INDEX_OWN_ONE_USERNAME": "me",
        "UV_INDEX_OWN_ONE_PASSWORD": "mine",
        "UV_INDEX_IN_FILE_USERNAME": "you",
        "UV_INDEX_IN_FILE_PASSWORD": "yours",
    }
    assert credentials.find(environment, "https://one.example/x") == ("me", "mine")
    assert credentials.find(environment, "https://two.example/x") == ("you", "yours")


@pytest.mark.parametrize("where", [".config/uv/uv.toml", "elsewhere/uv/uv.toml"])
def test_the_files_of_uv_name_indexes_too(tmp_path: Path, where: str) -> None:
    """Every way in which they can; UV_NO_CONFIG leaves them aside, a broken file is no reason to fail."""
    file = tmp_path / where
    file.parent.mkdir(parents=True)
    file.write_text(
        'index-url = "https://a:1@one.example/simple"\n'
        '[pip]\nextra-index-url = ["https://b:2@two.example/simple"]\n'
        '[[index]]\nurl = "https://c:3@three.example/simple"\n'
    )
    environment = {"HOME": str(tmp_path)}
    environment |= {} if where.startswith(".config") else {"XDG_CONFIG_HOME": str(tmp_path / "elsewhere")}
    found = [credentials.find(environment, f"https://{host}.example/x") for host in ("one", "two", "three")]
    assert found == [("a", "1"), ("b", "2"), ("c", "3")]
    assert credentials.find({**environment, "UV_NO_CONFIG": "1"}, "https://one.example/") is None
    file.write_text("index-url = ")
    assert credentials.find(environment, "https://one.example/") is None


def test_keyring_is_asked_as_uv_asks_it(tmp_path: Path) -> None:
    """For the address of the index, then for its host; with the user if there is one; only for an index of its own."""
    addresses = "https://me@two.example/simple https://me@three.example:8443/x https://four.example/simple"
    environment = with_keyring(tmp_path, UV_INDEX=addresses)
    assert credentials.find(environment, "https://two.example/file.whl") == ("me", "of-the-index")
    assert credentials.find(environment, "https://three.example:8443/file.whl") == ("me", "of-the-host")
    assert credentials.find(environment, "https://four.example/file.whl") == ("they", "theirs")
    asked = (tmp_path / "asked").read_text()
    assert credentials.find(environment, "https://five.example/file.whl") is None
    assert (tmp_path / "asked").read_text() == asked


def test_keyring_is_left_alone_unless_uv_is_told_to_use_it(tmp_path: Path) -> None:
    """By the environment or by its file; a program that is missing is nobody's credentials."""
    environment = with_keyring(tmp_path, UV_INDEX="https://me@two.example/simple")
    address = "https://two.example/file.whl"
    assert credentials.find({**environment, "UV_KEYRING_PROVIDER": "disabled"}, address) is None
    assert credentials.find({**environment, "UV_KEYRING_PROVIDER": ""}, address) is None
    file = tmp_path / "uv.toml"
    file.write_text('keyring-provider = "subprocess"\n')
    told = {**environment, "UV_KEYRING_PROVIDER": "", "UV_CONFIG_FILE": str(file)}
    assert credentials.find(told, address) == ("me", "of-the-index")
    (tmp_path / "keyring").unlink()
    assert credentials.find({**environment, "PATH": str(tmp_path)}, address) is None


def test_a_keyring_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it waits for somebody to unlock it who is not there; a program that can't be run is none."""
    monkeypatch.setattr(credentials, "PATIENCE", 0.1)
    environment = with_keyring(tmp_path, UV_INDEX="https://me@two.example/simple")
    program = tmp_path / "keyring"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    assert credentials.find(environment, "https://two.example/file.whl") is None
    program.chmod(0o600)
    assert credentials.find({**environment, "PATH": str(tmp_path)}, "https://two.example/file.whl") is None


def test_what_is_no_address_or_no_setting_is_passed_over(tmp_path: Path) -> None:
    """Uv complains of it; a message of ours about a misplaced password would show it."""
    file, netrc = tmp_path / "uv.toml", tmp_path / "netrc"
    file.write_text('pip = 1\nindex = "x"\nextra-index-url = "https://a:1@one.example/"\n')
    netrc.write_bytes(b"machine \xff login me password mine\n")
    wrong = "https://me:pass/word@one.example/ https://[::1 https://one.example:99999/"
    environment = {"UV_CONFIG_FILE": str(file), "NETRC": str(netrc), "UV_INDEX": f"{wrong} https://a:b@two.example/"}
    assert credentials.find(environment, "https://one.example/") is None
    assert credentials.find(environment, "https://two.example/") == ("a", "b")
