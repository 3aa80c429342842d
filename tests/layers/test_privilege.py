from __future__ import annotations

import os

import pytest

from torchkiln.layers.base import privilege


def explained(tools: tuple[str, ...], ranges: tuple[str, ...]) -> privilege.Lack:
    """For a user called ada."""
    return privilege.explain("mmdebstrap", tools, ranges, user="ada", said="E: refused", first=100000)


def test_what_is_missing_and_what_mends_it() -> None:
    """Programs by package, ranges by command, and else the program's own words."""
    both = explained(("newuidmap", "newgidmap"), ("/etc/subuid",))
    assert "newuidmap, newgidmap, a row for ada in /etc/subuid" in both.what
    assert both.remedy.startswith("apt-get install uidmap and usermod --add-subuids 100000-165535")
    assert explained((), ("/etc/subgid",)).remedy.startswith("usermod --add-subgids 100000-165535 ada")
    assert "E: refused" in explained((), ()).what


def test_ranges_do_not_overlap() -> None:
    """Two users with the same ids could change each other's files."""
    assert privilege.first_free("") == 100000
    assert privilege.first_free("a:100000:65536\nb:165536:65536\n# odd:row\n") == 231072


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming a user that has no range needs root")
def test_a_user_without_a_range_is_told_so() -> None:
    """Tried as that user: nobody has no row in /etc/subuid."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        os.setgid(65534)
        os.setuid(65534)
        os.write(writer, repr(privilege.lacks("mmdebstrap")).encode())
        os._exit(0)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    said = os.read(reader, 4096).decode()
    os.close(reader)
    assert "/etc/subuid" in said
    assert "usermod --add-subuids" in said
