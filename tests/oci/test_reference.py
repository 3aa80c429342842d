"""An image is named by host, repository and digest, and by nothing else."""

from __future__ import annotations

import pytest

from torchkiln.errors import ImageError
from torchkiln.oci import reference


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
