"""Ubuntu's suites take the same way as Debian's, with their own keys, mirror and components.

Ubuntu's archive need not be in reach: a small archive on loopback is called `jammy`, signed by a key of its own.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import re
import shutil
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from tests.layers.conftest import ROOT
from tests.toys import unpacked
from torchkiln.errors import BaseError
from torchkiln.layers.base import debian
from torchkiln.layers.base.distribution import SUITES, UBUNTU
from torchkiln.lock import baselock
from torchkiln.matrix import schema
from torchkiln.oci.store import Store
from torchkiln.specs import BaseSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torchkiln.home import Home
    from torchkiln.layers.base import BaseResult
    from torchkiln.matrix.target import Base

pytestmark = pytest.mark.network
MAIN = ("apt", "ca-certificates", "passwd")
UNIVERSE = ("tini",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """Where it is served, and the file with its key."""

    address: str
    keyring: Path


def said(*command: str, cwd: Path | None = None) -> str:
    """What a program prints."""
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True).stdout.decode()


def closure(names: tuple[str, ...]) -> set[str]:
    """These packages, the essential ones, and what all of them need, as far as the base of Debian 12 has it."""
    lock = baselock.read(ROOT / "images" / "locks" / "base-bookworm.txt")
    known = {name for name, _ in lock.packages}
    about = said("apt-cache", "show", "--no-all-versions", *sorted(known)).split("\n\n")
    essential = [re.findall(r"^Package: (.+)$", text, re.MULTILINE)[0] for text in about if "\nEssential: yes" in text]
    only = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    reached = said("apt-cache", "depends", "--recurse", *only, *essential, *names)
    return {line.strip() for line in reached.splitlines()} & known


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archive]:
    """Suites jammy, jammy-updates and jammy-security, the first with packages in main and universe."""
    if not (SUITES / "ubuntu.csv").exists() or shutil.which("gpg") is None:
        (pytest.fail if os.environ.get("TORCHKILN_REQUIRE") else pytest.skip)("apt-get install distro-info-data gpg")
    root = tmp_path_factory.mktemp("archive")
    root.chmod(0o755)
    packages = {"main": closure(MAIN) - set(UNIVERSE), "universe": set(UNIVERSE)}
    keys = tmp_path_factory.mktemp("keys")
    gpg = ("gpg", "--homedir", str(keys), "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", "")
    said(*gpg, "--quick-generate-key", "toy archive", "ed25519", "sign")
    for component, names in packages.items():
        folder = root / "pool" / component
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        said("apt-get", "download", *sorted(names), cwd=folder)
    for pocket in UBUNTU.pockets:
        _write(root, f"jammy{pocket}", tuple(packages), empty=bool(pocket))
        release = root / "dists" / f"jammy{pocket}" / "Release"
        said(*gpg, "--clearsign", "--output", str(release.with_name("InRelease")), str(release))
    (root / "archive.gpg").write_bytes(subprocess.run([*gpg, "--export"], check=True, capture_output=True).stdout)
    said("gpgconf", "--homedir", str(keys), "--kill", "all")
    with _served(root) as address:
        yield Archive(address=address, keyring=root / "archive.gpg")


def _write(root: Path, suite: str, components: tuple[str, ...], *, empty: bool) -> None:
    """Packages and Release of a suite (deb822(5); the fields that apt needs)."""
    sums = []
    for component in components:
        pool = [] if empty else sorted((root / "pool" / component).glob("*.deb"))
        data = "\n".join(_paragraph(path, root) for path in pool).encode()
        name = f"{component}/binary-amd64/Packages"
        path = root / "dists" / suite / name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        sums.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n")
    text = f"Suite: {suite}\nCodename: {suite}\nArchitectures: amd64\nComponents: {' '.join(components)}\n"
    text += f"Date: Thu, 21 Apr 2022 17:16:08 UTC\nSHA256:\n{''.join(sums)}"
    (root / "dists" / suite / "Release").write_text(text)


def _paragraph(path: Path, root: Path) -> str:
    data = path.read_bytes()
    about = said("dpkg-deb", "--field", str(path)).rstrip("\n")
    digest = hashlib.sha256(data).hexdigest()
    return f"{about}\nFilename: {path.relative_to(root)}\nSize: {len(data)}\nSHA256: {digest}\n"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files of a folder."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def _served(root: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=root)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def jammy(archive: Archive) -> Base:
    """The matrix's base, less what the small archive lacks."""
    stated = schema.load(ROOT / "matrix.yaml").bases["jammy"]
    return replace(stated, keyring=str(archive.keyring), packages=("ca-certificates", "passwd", "tini"))


def build(home: Home, base: Base, mirror: str) -> BaseResult:
    """The base, with a mirror for Ubuntu in the environment and one for Debian that must not be asked."""
    recipe = debian.recipe()
    spec = BaseSpec(base=base, lock=baselock.make(()), recipe=recipe.digest)
    environment = {UBUNTU.mirror: mirror, "TORCHKILN_DEBIAN_MIRROR": "http://127.0.0.1:1/debian"}
    return debian.build(home, Store(home.store), spec, recipe=recipe, frozen=False, environment=environment)


def test_a_suite_of_ubuntu_is_assembled(home: Home, archive: Archive, jammy: Base) -> None:
    """From the mirror that the environment names, by the keys that the row names; the image keeps Ubuntu's sources."""
    made = build(home, jammy, archive.address)
    assert {"apt", "dpkg", "tini"} < {name for name, _ in made.packages.packages}
    files = unpacked(Store(home.store), made.layers[0])
    sources = files["etc/apt/sources.list"][1].decode().splitlines()
    assert [line.split()[2:] for line in sources] == [
        [suite, "main", "universe"] for suite in ("jammy", "jammy-updates", "jammy-security")
    ]
    assert all("ubuntu" in line.split()[1] for line in sources)
    assert not [name for name, (_, data) in files.items() if archive.address.encode() in data]
    assert "usr/bin/tini" in files


def test_keys_of_somebody_else_are_refused(home: Home, archive: Archive, jammy: Base) -> None:
    """Debian's keys do not sign for Ubuntu's archive: nothing is installed, and the remedy names the package."""
    row = replace(jammy, keyring="/usr/share/keyrings/debian-archive-keyring.gpg")
    with pytest.raises(BaseError, match="key is unknown") as raised:
        build(home, row, archive.address)
    assert "ubuntu-archive-keyring" in raised.value.remedy


def test_the_mirror_of_the_row_binds(home: Home, archive: Archive, jammy: Base) -> None:
    """The environment's is not asked in its place; what is out of reach is Ubuntu's archive, with its own variable."""
    row = replace(jammy, mirror="http://127.0.0.1:1/ubuntu")
    with pytest.raises(BaseError, match="Ubuntu archive can't be reached") as raised:
        build(home, row, archive.address)
    assert UBUNTU.mirror in raised.value.remedy
