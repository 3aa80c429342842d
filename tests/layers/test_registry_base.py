"""An image that others made becomes a base if it holds what ours need; all that it lacks is told at once."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests import toyregistry
from tests.toyregistry import Toy, tar
from tests.toys import unpacked
from torchkiln import plan, specs
from torchkiln.errors import BaseError, LockError, PlanError, StaleLockError
from torchkiln.inspect.listing import Entry
from torchkiln.layers.base import foreign, recipe, registry, survey
from torchkiln.lock import baselock, rows
from torchkiln.matrix.target import Accelerator, Base, Flavour, Gpu, Release, Target
from torchkiln.oci.pull import pull
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torchkiln.home import Home
    from torchkiln.layers.base import BaseResult
    from torchkiln.lock.baselock import BaseLock

ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00"
ARM = ELF[:18] + b"\xb7\x00"
LIBC = b"\0GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n\0"
FILES: Mapping[str, bytes | str] = {
    "bin": "usr/bin",
    "etc/": b"",
    "etc/ld.so.cache": b"cache",
    "etc/passwd": b"root:x:0:0::/root:/bin/sh\nubuntu:x:1000:1000::/home/ubuntu:/bin/sh\n",
    "etc/shadow": b"root:*:1::::::\n",
    "etc/ssl/certs/ca-certificates.crt": b"BEGIN",
    "usr/": b"",
    "usr/bin/": b"",
    "usr/bin/bash": ELF,
    "usr/bin/g++": "/etc/alternatives/g++",
    "etc/alternatives/g++": "/usr/bin/g++-12",
    "usr/bin/g++-12": ELF,
    "usr/bin/gcc": "gcc-12",
    "usr/bin/gcc-12": ELF,
    "usr/bin/python3": "python3.11",
    "usr/bin/python3.11": ELF,
    "usr/bin/tini": ELF,
    "usr/include/python3.11/Python.h": b"",
    "usr/include/python3.11/patchlevel.h": b'/* x */\n#define PY_VERSION              "3.11.2+"\n',
    "usr/lib/": b"",
    "usr/lib/x86_64-linux-gnu/libc.so.6": LIBC,
}
"""As much of an image as is looked at."""
BASE = Base(id="toy", kind="registry", python="3.11", glibc="2.36")


@pytest.fixture
def toy() -> Iterator[Toy]:
    """A registry on loopback."""
    with toyregistry.serving() as found:
        yield found


def at(toy: Toy, *layers: Mapping[str, bytes | str], base: Base = BASE) -> Base:
    """A base whose image is these layers, on the registry."""
    modes = {"etc/shadow": 0o640, "etc/passwd": 0o644}
    return replace(base, image=toy.at(toy.add(*(tar(files, modes) for files in layers))))


def lock(home: Home, base: Base) -> BaseLock:
    """What `./inv lock --base` writes for it."""
    return registry.lock(home, Store(home.store), base, machine="x86_64", environment={})


def target(base: Base) -> Target:
    """A row on this base."""
    return Target(
        release=Release(id="torch213", torch="2.13.0"),
        accelerator=Accelerator(id="cpu", kind="cpu"),
        gpu=Gpu(id="generic"),
        flavour=Flavour(id="runtime"),
        base=base,
        required=("*",),
    )


def build(home: Home, base: Base, locked: BaseLock) -> BaseResult:
    """The base's layers, as a build makes them."""
    store = Store(home.store)
    *below, adoption = plan.base_specs(target(base), locked, recipe.read("foreign").digest)
    assert isinstance(adoption, specs.AdoptionSpec)
    registry.fetch(store, adoption, environment={})
    return foreign.build(home, store, [spec for spec in below if isinstance(spec, specs.ForeignSpec)], adoption)


def test_an_image_that_holds_everything_becomes_a_base(home: Home, toy: Toy) -> None:
    """Its layers as they are, and one of ours with user, home, a folder for work and the recipe's files."""
    base = at(toy, FILES, {"etc/motd": b"hello\n"})
    locked = lock(home, base)
    assert (locked.python, locked.source, len(locked.layers)) == ("3.11.2", base.image, 2)
    made = build(home, base, locked)
    assert [replace(layer, title="") for layer in made.layers[:2]] == list(locked.layers)
    assert [layer.title for layer in made.layers[:2]] == ["base toy, layer 1 of 2", "base toy, layer 2 of 2"]
    ours = unpacked(Store(home.store), made.layers[2])
    assert ours["etc/passwd"][1].splitlines()[1:] == [
        b"torch:x:1000:0:torch:/home/torch:/bin/bash",  # before the other of that number: it is the number's name
        b"ubuntu:x:1000:1000::/home/ubuntu:/bin/sh",
    ]
    assert (ours["etc/shadow"][0].mode, ours["etc/passwd"][0].mode) == (0o640, 0o644)
    assert ours["etc/shadow"][1].splitlines()[-1].startswith(b"torch:*:")
    assert (ours["home/torch"][0].mode, ours["home/torch"][0].uid, ours["workspace"][0].mode) == (0o775, 1000, 0o1777)
    assert b"localhost" in ours["etc/hosts"][1]
    assert build(home, base, locked) == made


def test_what_a_package_database_leaves_out_is_not_installed(home: Home, toy: Toy) -> None:
    """Others wrote it: a paragraph without a version ends nothing, and names no package."""
    status = b"Package: lost\nStatus: install ok installed\n\nStatus: install ok installed\nVersion: 1\n"
    base = at(toy, {**FILES, "var/lib/dpkg/status": status})
    assert lock(home, base).python == "3.11.2"
    with pytest.raises(BaseError, match="there is no lost"):
        lock(home, replace(base, packages=("lost",)))


def test_a_link_longer_than_any_path_leads_nowhere() -> None:
    """The kernel makes none (symlink(2), ENAMETOOLONG), and following one would take as long as its author likes."""
    tree = {"b": Entry("b", "file", 0o644, 0)}
    for count, found in ((2000, "b"), (2050, "")):
        assert survey.real({**tree, "a": Entry("a", "symlink", 0o777, 0, "./" * count + "b")}, "a") == found


def test_a_user_torch_that_fits_stays(home: Home, toy: Toy) -> None:
    """A base that was made from one of ours is not given the user twice."""
    rows_ = b"root:x:0:0::/root:/bin/sh\ntorch:x:1000:0:torch:/home/torch:/bin/bash\n"
    base = at(toy, {**FILES, "etc/passwd": rows_})
    assert "etc/passwd" not in unpacked(Store(home.store), build(home, base, lock(home, base)).layers[-1])


def test_of_a_name_that_comes_twice_the_last_counts(home: Home, toy: Toy) -> None:
    """As engines unpack it: the rows that are kept are those that would be there."""
    rows_ = b"root:x:0:0::/root:/bin/bash\n"
    buffer = io.BytesIO(tar(FILES))
    with tarfile.open(fileobj=buffer, mode="a") as archive:
        again = tarfile.TarInfo("etc/passwd")
        again.size = len(rows_)
        archive.addfile(again, io.BytesIO(rows_))
    base = replace(BASE, image=toy.at(toy.add(buffer.getvalue())))
    made = build(home, base, lock(home, base))
    assert unpacked(Store(home.store), made.layers[-1])["etc/passwd"][1].startswith(rows_)


def test_a_file_under_two_names_is_not_taken_from_below(home: Home, toy: Toy) -> None:
    """A hard link has no content of its own, and what lower layers have under its name is not there any more."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        linked = tarfile.TarInfo("etc/shadow")
        linked.type, linked.linkname = tarfile.LNKTYPE, "etc/ld.so.cache"
        archive.addfile(linked)
    base = replace(BASE, image=toy.at(toy.add(tar(FILES), buffer.getvalue())))
    assert "etc/shadow" not in unpacked(Store(home.store), build(home, base, lock(home, base)).layers[-1])


def test_a_version_is_a_version(home: Home, toy: Toy) -> None:
    """Nothing else of the headers gets into the lock, which is a text of lines."""
    lines = b'#define PY_VERSION "3.11.2\nsha256:0000"\n'
    with pytest.raises(BaseError, match=r"no headers"):
        lock(home, at(toy, {**FILES, "usr/include/python3.11/patchlevel.h": lines}))


def test_an_interpreter_may_be_elsewhere(home: Home, toy: Toy) -> None:
    """Its headers are then beside it, and the environment leads there."""
    elsewhere = {
        **{name: data for name, data in FILES.items() if "python" not in name},
        "usr/local/bin/python3": "python3.12",
        "usr/local/bin/python3.12": ELF,
        "usr/local/include/python3.12/Python.h": b"",
        "usr/local/include/python3.12/patchlevel.h": b'#define PY_VERSION "3.12.4"\n',
    }
    stated = replace(BASE, python="3.12", interpreter="/usr/local/bin/python3")
    assert lock(home, at(toy, elsewhere, base=stated)).python == "3.12.4"


WITHOUT: Mapping[str, tuple[Mapping[str, bytes | str | None], str]] = {
    "interpreter": ({"usr/bin/python3.11": None}, "there is no /usr/bin/python3"),
    "another minor": (
        {"usr/bin/python3": "python3.12", "usr/bin/python3.12": ELF},
        "/usr/bin/python3 is python3.12, the row says 3.11",
    ),
    "interpreter of another machine": ({"usr/bin/python3.11": ARM}, "/usr/bin/python3.11 is for aarch64, not x86_64"),
    "headers": ({"usr/include/python3.11/Python.h": None}, "install python3.11-dev"),
    "headers of another minor": (
        {"usr/include/python3.11/patchlevel.h": b'#define PY_VERSION "3.12.1"\n'},
        "are of Python 3.12.1",
    ),
    "gcc": ({"usr/bin/gcc": None}, "there is no gcc"),
    "g++ behind links": ({"usr/bin/g++-12": None}, "there is no g++"),
    "tini": ({"usr/bin/tini": None}, "there is no /usr/bin/tini"),
    "tini of another machine": ({"usr/bin/tini": ARM}, "/usr/bin/tini is for aarch64"),
    "bash": ({"usr/bin/bash": None}, "there is no /bin/bash"),
    "loader's cache": ({"etc/ld.so.cache": None}, "run ldconfig"),
    "certificates": ({"etc/ssl/certs/ca-certificates.crt": None}, "install ca-certificates"),
    "glibc": ({"usr/lib/x86_64-linux-gnu/libc.so.6": None}, "there is no GNU C library"),
    "another glibc": (
        {"usr/lib/x86_64-linux-gnu/libc.so.6": LIBC.replace(b"2.36", b"2.31")},
        "glibc 2.31, the row says 2.36",
    ),
    "passwd": ({"etc/passwd": None}, "there is no /etc/passwd"),
    "torch with no number": ({"etc/passwd": b"torch\n"}, "torch has uid none and gid none"),
    "torch with another number": ({"etc/passwd": b"torch:x:1001:0::/:/bin/sh\n"}, "torch has uid 1001 and gid 0"),
    "a venv": ({"opt/venv/": b""}, "/opt/venv is there already"),
    "a link on our way": ({"opt": "srv"}, "/opt is a symlink, not a folder"),
    "a circle of links": ({"usr/bin/gcc": "gcc-12", "usr/bin/gcc-12": "gcc"}, "there is no gcc"),
}


@pytest.mark.parametrize("case", WITHOUT)
def test_what_an_image_lacks_is_told(home: Home, toy: Toy, case: str) -> None:
    """One thing wrong is one line of the message."""
    changes, said = WITHOUT[case]
    files = {name: data for name, data in {**FILES, **changes}.items() if data is not None}
    with pytest.raises(BaseError) as raised:
        lock(home, at(toy, files))
    assert said in raised.value.what
    assert len(raised.value.what.splitlines()) == 2


def test_everything_an_image_lacks_is_told_at_once(home: Home, toy: Toy) -> None:
    """One round is enough to know what to add."""
    with pytest.raises(BaseError) as raised:
        lock(home, at(toy, {"etc/motd": b"nothing"}))
    for said in ("python3", "gcc", "g++", "tini", "Python.h", "ldconfig", "passwd", "C library", "certificates"):
        assert said in raised.value.what


def test_packages_of_a_flavour_must_be_there(home: Home, toy: Toy) -> None:
    """Nothing is installed into an image that others made: it has the package, or a program of that name."""
    devel = replace(BASE, flavour="devel", packages=("git", "curl"))
    status = b"Package: git\nStatus: install ok installed\nVersion: 1\n"
    holding = {**FILES, "var/lib/dpkg/status": status, "usr/bin/curl": ELF}
    assert lock(home, at(toy, holding, base=devel)).layers
    with pytest.raises(BaseError) as raised:
        lock(home, at(toy, FILES, base=devel))
    assert "there is no git, which flavour devel needs" in raised.value.what
    assert "there is no curl" in raised.value.what
    assert raised.value.where == "base toy-devel"


def test_what_a_higher_layer_removes_is_not_there(home: Home, toy: Toy) -> None:
    """Whiteouts count: the merged tree is judged, not what once was."""
    with pytest.raises(BaseError, match="there is no /usr/bin/tini"):
        lock(home, at(toy, FILES, {"usr/bin/.wh.tini": b""}))


def test_links_are_followed_inside_the_image(home: Home, toy: Toy) -> None:
    """A link that climbs above the root ends at the root, as in a container; the builder's files play no part."""
    base = at(toy, {**FILES, "usr/bin/gcc": "../../../../../usr/bin/gcc-12", "usr/bin/g++": "/proc/self/exe"})
    with pytest.raises(BaseError) as raised:
        lock(home, base)
    assert raised.value.what.splitlines()[1:] == ["  there is no g++"]


def test_an_image_is_judged_when_it_is_built_too(home: Home, toy: Toy) -> None:
    """A lock written by hand buys nothing, and an image of other layers than the lock's is refused."""
    store = Store(home.store)
    one, two = at(toy, FILES), at(toy, FILES, {"etc/motd": b"x"})
    locked = lock(home, one)
    store.discard(locked.layers[0].descriptor.digest)
    with pytest.raises(BaseError, match="has other layers") as raised:
        build(home, two, locked)
    assert raised.value.remedy.startswith("./inv lock --target torch213-cpu-toy --base, and")
    base = at(toy, {**FILES, "opt": "srv"})
    pulled = pull(base.image, store, machine="x86_64", environment={})
    forged = baselock.of_image(pulled.image.layers, source=base.image, config=pulled.config, python="3.11.2")
    with pytest.raises(BaseError, match="/opt is a symlink"):
        build(home, base, forged)


def test_another_recipe_is_refused(home: Home, toy: Toy) -> None:
    """A plan and a builder that disagree make no layer."""
    base = at(toy, FILES)
    adoption = specs.AdoptionSpec(base=base, lock=lock(home, base), recipe="sha256:other")
    with pytest.raises(PlanError, match="another recipe"):
        foreign.build(home, Store(home.store), [], adoption)


def test_a_lock_of_another_image_is_stale(home: Home, toy: Toy, tmp_path: Path) -> None:
    """A row whose image was changed asks for a new lock; one without a lock says what to run."""
    base = at(toy, FILES)
    with pytest.raises(LockError) as raised:
        rows.packages(tmp_path, target(base))
    assert raised.value.remedy == "./inv lock --target torch213-cpu-toy --base"
    (tmp_path / base.lock_name).write_text(baselock.render(lock(home, base)))
    assert rows.packages(tmp_path, target(base)).layers
    with pytest.raises(StaleLockError, match="the row's base is"):
        rows.packages(tmp_path, target(at(toy, FILES, {"etc/motd": b"x"})))
