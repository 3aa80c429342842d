"""`doctor` tells what is missing, and no secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln import doctor

if TYPE_CHECKING:
    import pytest

    from torchkiln.home import Home


def test_missing_mmdebstrap_says_how_to_get_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is a command."""
    monkeypatch.setenv("PATH", "/nowhere")
    (found,) = [finding for finding in doctor.diagnose(home, (), {}) if finding.name == "mmdebstrap"]
    assert (found.state, found.remedy) == ("missing", "apt-get install mmdebstrap")


def test_proxy_password_is_not_shown(home: Home) -> None:
    """Host and port are enough to recognise it."""
    findings = doctor.diagnose(home, (), {"HTTPS_PROXY": "http://user:canary@proxy.example:3128"})
    told = [finding.detail for finding in findings if finding.name == "proxy"]
    assert told == ["HTTPS_PROXY → http://proxy.example:3128"]
    assert "canary" not in repr(findings)


def test_missing_ca_file_is_found(home: Home) -> None:
    """A CA setting that points nowhere breaks every download later."""
    (found,) = [f for f in doctor.diagnose(home, (), {"SSL_CERT_FILE": "/nowhere/ca.pem"}) if f.name == "ca"]
    assert found.state == "missing"
