"""An image is named by host, repository and digest, and by nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchkiln.errors import ImageError
from torchkiln.oci import reference

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1/x:latest",
        "127.0.0.1/x@sha256:12",
        "x@sha256:" + "a" * 64,
        "127.0.0.1/../x@sha256:" + "a" * 64,
        "127.0.0.1/x/../y@sha256:" + "a" * 64,
        "127.0.0.1/x//y@sha256:" + "a" * 64,
        "127.0.0.1/x./y@sha256:" + "a" * 64,
        "127.0.0.1/" + "x" * 300 + "@sha256:" + "a" * 64,
        "127.0.0.1/x?y@sha256:" + "a" * 64,
        "user:word@127.0.0.1/x@sha256:" + "a" * 64,
        "127.0.0.1/x@sha512:" + "a" * 128,
    ],
)
def test_only_digests_name_images(text: str) -> None:
    """A tag may move; a path, a query or a password has no place in a name."""
    with pytest.raises(ImageError):
        reference.parse(text)


def test_plain_http_is_for_this_machine_alone() -> None:
    """Other hosts are asked by HTTPS; the hub's own images lie in a folder."""
    at = "@sha256:" + "a" * 64
    assert reference.parse(f"localhost:5000/x{at}").address == "http://localhost:5000/v2/x"
    assert reference.parse(f"LocalHost:5000/x{at}").address == "http://LocalHost:5000/v2/x"
    assert reference.parse(f"127.0.0.1.example.org/x{at}").address == "https://127.0.0.1.example.org/v2/x"
    assert reference.parse(f"docker.io/debian{at}").address == "https://registry-1.docker.io/v2/library/debian"
    assert reference.parse(f"registry.example/a-b/c__d.e/f--g{at}").repository == "a-b/c__d.e/f--g"


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("toy:1", "docker.io/library/toy:1"),
        ("docker.io/toy:1", "docker.io/library/toy:1"),
        ("ada/toy:1", "docker.io/ada/toy:1"),
        ("docker.io/ada/toy", "docker.io/ada/toy"),
        ("127.0.0.1:5000/toy:1", "127.0.0.1:5000/toy:1"),
        ("localhost/toy:1", "localhost/toy:1"),
        ("ghcr.io/ada/toy:1", "ghcr.io/ada/toy:1"),
    ],
)
def test_short_names_are_the_hubs(short: str, full: str) -> None:
    """As engines read them."""
    assert reference.whole(short) == full


AT = "@sha256:" + "a" * 64


@pytest.mark.parametrize("read", [reference.parse, reference.destination, reference.repository])
@pytest.mark.parametrize(
    "text",
    [
        "user:s3cret@127.0.0.1:5091/me/t:1",
        "user:s3cret@127.0.0.1:5091/me/t" + AT,
        "user:s3c/s3cret@127.0.0.1/me/t",
        "https://user:s3cret@127.0.0.1/me/t",
        "user:s3cret@registry.example/Me/t",
        "user:s3cret@me/t",
        "user:s3cret\n@127.0.0.1/me/t",
    ],
)
def test_no_password_is_shown(read: Callable[[str], object], text: str) -> None:
    """A name that holds one is refused, and the error says where it belongs instead."""
    with pytest.raises(ImageError) as raised:
        read(text)
    assert "s3c" not in str(raised.value)
    assert "***@" in raised.value.where
    assert raised.value.remedy == "credentials belong to docker login or netrc, not into a name"


@pytest.mark.parametrize("text", ["https://user:s3cret@x", "127.0.0.1/Me/x:1@s3cret", "x/user:s3cret@y:1"])
def test_a_password_where_none_can_be_is_not_shown_either(text: str) -> None:
    """Nor is what stands before an @ repeated by the advice."""
    with pytest.raises(ImageError) as raised:
        reference.destination(text)
    assert "user" not in str(raised.value)
    assert "Me/x:1@" not in str(raised.value)


@pytest.mark.parametrize("name", ["me/torch", "me/torch:1", "torch", "torch:1", "me/torch" + AT, "torch" + AT])
@pytest.mark.parametrize("read", [reference.parse, reference.destination, reference.repository])
def test_a_registry_is_named_and_never_guessed(read: Callable[[str], object], name: str) -> None:
    """A first part without dot or port is a user of the hub to engines, and no host."""
    with pytest.raises(ImageError) as raised:
        read(name)
    assert raised.value.remedy == f"name the registry too, as in docker.io/{name}"


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("127.0.0.1:5000/Me/Torch:One", "repositories are written in small letters: 127.0.0.1:5000/me/torch"),
        ("localhost/me/torch" + AT, "a tag or none, but no digest, such as docker.io/USER/NAME:TAG"),
        ("https://localhost/me/torch", "a name, not an address: localhost/me/torch"),
        ("localhost/" + "x" * 300, "a repository has at most 255 letters"),
        ("localhost/x?y", "such as docker.io/USER/NAME:TAG"),
    ],
)
def test_the_cause_is_told(text: str, remedy: str) -> None:
    """What to write instead, for each way to write a name wrongly."""
    with pytest.raises(ImageError, match="HOST/REPOSITORY") as raised:
        reference.destination(text)
    assert raised.value.remedy == remedy


def test_a_tag_may_have_any_case() -> None:
    """Only repositories may not."""
    assert reference.destination("localhost/me/torch:One").tag == "One"
    assert reference.destination("localhost/me/torch").tag == "latest"
