"""Additions from an index that asks for a password: locked, fetched, made into layers, and the password is nowhere."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import assembling, loopback, toys
from torchkiln import assembly, credentials
from torchkiln.errors import FetchError, LockError
from torchkiln.lock import fit, lockfile, resolve
from torchkiln.matrix import schema
from torchkiln.matrix.target import select
from torchkiln.oci.image import Config
from torchkiln.plan import ImagePlan
from torchkiln.project import Project
from torchkiln.specs import WheelSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.loopback import Index
    from torchkiln.home import Home
    from torchkiln.lock.lockfile import Lock

ROOT = Path(__file__).parents[2]
(ROW,) = select(schema.load(ROOT / "matrix.yaml").targets, ["torch28-cu128"])
SECRET = "hunter2-of-the-private-index"  # noqa: S105  of a server that lives for one test
TOLD = (SECRET, base64.b64encode(f"user:{SECRET}".encode()).decode())
"""As it is, and as a header has it."""


@dataclass(frozen=True, kw_only=True)
class Indexes:
    """One that anybody may use, and one that asks for a password."""

    public: Index
    private: Index

    @property
    def address(self) -> str:
        """Of the private one, without credentials."""
        return f"{self.private.url}/simple"


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[Indexes]:
    """The default index has a dependency of the addition, and an unrelated wheel of the addition's name."""
    with loopback.serve() as public, loopback.serve() as private:
        private.password, private.relative = SECRET, True
        private.put(toys.make_wheel(tmp_path / "toys", "ours", "1.0", requires=["theirs"]))
        public.put(toys.make_wheel(tmp_path / "toys", "theirs", "2.0"))
        public.put(toys.make_wheel(tmp_path / "toys", "ours", "9.0"))
        yield Indexes(public=public, private=private)


def netrc(indexes: Indexes, home: Path) -> dict[str, str]:
    """In ~/.netrc."""
    (home / ".netrc").write_text(f"machine 127.0.0.1 login user password {SECRET}\n")
    return {"UV_INDEX": indexes.address}


def keyring(indexes: Indexes, home: Path) -> dict[str, str]:
    """Told by a program of that name."""
    program = home / "bin/keyring"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$1" = get ] && [ "$3" = user ] && echo {SECRET}\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    address = indexes.address.replace("//", "//user@")
    return {"UV_INDEX": address, "UV_KEYRING_PROVIDER": "subprocess", "PATH": path}


def address(indexes: Indexes, _home: Path) -> dict[str, str]:
    """In the address that the environment names."""
    return {"UV_INDEX": indexes.address.replace("//", f"//user:{SECRET}@")}


def variables(indexes: Indexes, _home: Path) -> dict[str, str]:
    """In variables for an index with a name."""
    own = {"UV_INDEX_OURS_USERNAME": "user", "UV_INDEX_OURS_PASSWORD": SECRET}
    return {"UV_INDEX": f"ours={indexes.address}", **own}


def settings(indexes: Indexes, home: Path) -> dict[str, str]:
    """In the user's own file."""
    file = home / ".config/uv/uv.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'[[index]]\nurl = "{indexes.address.replace("//", f"//user:{SECRET}@")}"\n')
    return {}


WAYS = (netrc, keyring, address, variables, settings)


@pytest.fixture(params=WAYS, ids=[way.__name__ for way in WAYS])
def environment(request: pytest.FixtureRequest, indexes: Indexes, tmp_path: Path) -> Mapping[str, str]:
    """One of the ways in which a user may have told the password."""
    home = tmp_path / "user"
    home.mkdir()
    common = {"PATH": os.environ["PATH"], **indexes.public.environment(home)}
    return {**common, **request.param(indexes, home)}


def locked(environment: Mapping[str, str]) -> Lock:
    """The addition to a row."""
    asked = replace(fit.asked(ROW), requirements=("ours",))
    return lockfile.make(asked, resolve.wheels(asked, ROW, environment, hashes={}), "uv")


def built(home: Home, lock: Lock, environment: Mapping[str, str]) -> dict[str, bytes]:
    """The wheels of a lock as the layer of an image in the store; what is in its files."""
    project = Project(root=ROOT, home=home, environment=environment)
    assembling.make_base(project, assembling.BASE)
    plan = ImagePlan(target="row", layers=(assembling.BASE, WheelSpec(pins=lock.pins)), config=Config())
    _, image = assembly.assemble(project, plan, lock, frozen=True, stages={})
    project.store.put_image(image, "row")
    return {name: data for name, (_, data) in toys.unpacked(project.store, image.layers[-1]).items()}


def leaks(folder: Path) -> list[Path]:
    """Files that hold the password."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if any(secret.encode() in path.read_bytes() for secret in TOLD)]


def test_an_addition_comes_from_a_private_index_and_its_password_stays(
    environment: Mapping[str, str], home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither the lock, nor a message, a layer, the config or anything else in the cache repeats it."""
    lock = locked(environment)
    assert {pin.name: pin.version for pin in lock.pins} == {"ours": "1.0", "theirs": "2.0"}
    files = built(home, lock, environment)
    assert files[f"{toys.SITE}/ours/__init__.py"] == b"answer = 42\n"
    assert not [name for name, data in files.items() if any(secret.encode() in data for secret in TOLD)]
    told = capfd.readouterr()
    assert not [secret for secret in TOLD if secret in f"{told} {lock} {lockfile.render(lock)}"]
    assert "127.0.0.1" not in lockfile.render(lock)
    assert leaks(home.root) == []
    assert len(list(home.root.rglob("*.whl"))) == len(lock.pins)


def test_what_fails_with_a_private_index_repeats_no_password(
    indexes: Indexes, environment: Mapping[str, str], home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whether the index breaks down while it is asked, or while a file comes."""
    lock = locked(environment)
    indexes.private.faults["ours-1.0-py3-none-any.whl"] = ["!404"]
    with pytest.raises(FetchError) as absent:
        built(home, lock, environment)
    indexes.private.down.add("simple")
    with pytest.raises(LockError) as down:
        locked({**environment, "UV_CACHE_DIR": f"{home.root}/other"})
    with pytest.raises(FetchError) as unfound:
        built(home, lock, {**environment, "UV_CACHE_DIR": f"{home.root}/other"})
    told = f"{absent.value} {down.value} {unfound.value} {capfd.readouterr()}"
    assert not [secret for secret in TOLD if secret in told]
    assert leaks(home.root) == []


@pytest.mark.parametrize("way", [netrc, keyring, address], ids=["netrc", "keyring", "address"])
def test_a_wrong_password_leads_to_no_other_index(indexes: Indexes, tmp_path: Path, way: object) -> None:
    """The default index has a wheel of that name; it is not what was asked for."""
    indexes.private.password = "another"  # noqa: S105  than the user has
    user = tmp_path / "user"
    user.mkdir()
    common = {"PATH": os.environ["PATH"], **indexes.public.environment(user)}
    assert callable(way)
    with pytest.raises(LockError):
        locked({**common, **way(indexes, user)})


def test_credentials_go_to_the_private_index_alone(indexes: Indexes, tmp_path: Path) -> None:
    """The other server of the same host is told nothing."""
    environment = address(indexes, tmp_path)
    assert credentials.find(environment, f"{indexes.private.url}/files/x.whl") == ("user", SECRET)
    assert credentials.find(environment, f"{indexes.public.url}/files/x.whl") is None
