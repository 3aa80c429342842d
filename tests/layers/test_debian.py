"""Bases hold Debian and nothing of the machine that built them; an archive that moved on is told, never hidden."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import rawlayers
from tests.layers.conftest import ROOT
from tests.toys import unpacked
from torchkiln import room, rootfs, specs
from torchkiln.engines import Command
from torchkiln.engines.sandbox import Sandbox
from torchkiln.errors import BaseError, HostError, ImageError, PlanError
from torchkiln.layers.archive import Entry, write_layer
from torchkiln.layers.base import bootstrap, debian, distribution, userland
from torchkiln.layers.base.distribution import DEBIAN, UBUNTU
from torchkiln.layers.base.recipe import Recipe
from torchkiln.lock import baselock
from torchkiln.matrix.target import Base
from torchkiln.oci.image import ZSTD_TYPE, Config, Image
from torchkiln.oci.store import Store

if TYPE_CHECKING:
    from tests.layers.conftest import Made
    from torchkiln.home import Home
    from torchkiln.layers.archive import Content

BASE = Base(id="toy", kind="debian", suite="bookworm", python="3.11", glibc="2.36", packages=("tini", "gcc"))
JAMMY = replace(BASE, id="jammy", suite="jammy", python="3.10", glibc="2.35", components=("main", "universe"))
RECIPE = Recipe(setup="true\n", rootfs={"etc/hosts": b"127.0.0.1 localhost\n"})
STATUS = (
    "Package: dash\nStatus: install ok installed\nArchitecture: amd64\nEssential: yes\nVersion: 0.5\n\n"
    "Package: gone\nStatus: deinstall ok config-files\n"
)
NOW = (("dash", "0.5"),)
MORE = """
Package: libz
Status: install ok installed
Architecture: amd64
Priority: optional
Version: 3

Package: dpkg
Status: install ok installed
Architecture: amd64
Priority: required
Version: 1

Package: data
Status: install ok installed
Architecture: all
Version: 4

Package: gcc
Status: install ok installed
Architecture: amd64
Version: 2
"""
"""Of each kind that marks tell apart."""
ASKED = ("gcc", "tini")


def member(name: str, data: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    """A member of a tar as mmdebstrap writes it."""
    info = tarfile.TarInfo(f"./{name}")
    info.size, info.mode = len(data), 0o644
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def folder(name: str, mode: int = 0o755, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    """A folder."""
    return member(name, b"", type=tarfile.DIRTYPE, mode=mode, **fields)


USERLAND = (
    folder(""),
    folder("etc"),
    member("etc/passwd", b"root:x:0:0::/root:/bin/sh\n"),
    member("etc/shadow", b"root:*:3653::::::\n", mode=0o640, gid=42),
    member("etc/apt/sources.list", b"deb [signed-by=/usr/share/keyrings/k.gpg] http://127.0.0.1/x bookworm main\n"),
    folder("etc/skel"),
    member("etc/skel/.bashrc", b"# hello\n"),
    member("var/lib/dpkg/status", STATUS.encode()),
)


def read(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> dict[str, tuple[Entry, bytes]]:
    """Entries and contents of a userland with these members besides the usual ones."""
    write(path, *members)
    found = userland.read(path, RECIPE.rootfs, ASKED)
    assert [entry.path for entry, _ in found] == sorted((entry.path for entry, _ in found), key=_order)
    return {entry.path: (entry, _bytes(content)) for entry, content in found}


def write(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> None:
    """A tar of a userland."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in (*USERLAND, *members):
            tar.addfile(info, io.BytesIO(data))


def _order(path: str) -> list[str]:
    return path.split("/")


def _bytes(content: Content) -> bytes:
    if callable(content):
        with content() as stream:
            return stream.read()
    return content or b""


def spec(packages: tuple[tuple[str, str], ...]) -> specs.BaseSpec:
    """A base with a lock of these packages."""
    return specs.BaseSpec(base=BASE, lock=baselock.make(packages), recipe=RECIPE.digest)


@pytest.mark.parametrize(
    "name",
    [
        "etc/passwd-",
        "etc/group-",
        "etc/shadow-",
        "etc/gshadow-",
        "etc/subuid-",
        "etc/.pwd.lock",
        "etc/ssh/ssh_host_rsa_key",
        "etc/apt/apt.conf.d/99mmdebstrap",
        "etc/apt/preferences.d/99torchkiln-build",
        "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
        "var/backups/dpkg.status.0",
        "var/cache/apt/archives/dash.deb",
        "var/cache/apt/pkgcache.bin",
        "var/cache/debconf/templates.dat-old",
        "var/cache/ldconfig/aux-cache",
        "var/lib/apt/lists/mirror_dists_bookworm_InRelease",
        "var/lib/dbus/machine-id",
        "var/lib/dpkg/lock",
        "var/lib/dpkg/status-old",
        "var/log/dpkg.log",
        "var/log/apt/term.log",
        "run/utmp",
        "tmp/left",
        "dev/null",
    ],
)
def test_what_belongs_to_the_builder_stays_out(tmp_path: Path, name: str) -> None:
    """Logs, caches, locks, backups, keys, temporary files and build settings are no part of a base."""
    assert name not in read(tmp_path / "tar", member(name, b"builder"))


@pytest.mark.parametrize("name", ["etc/hostname", "etc/machine-id", "etc/resolv.conf"])
def test_identity_is_empty(tmp_path: Path, name: str) -> None:
    """An engine finds an empty file to mount its own over, and the builder's content is nowhere."""
    for found in (read(tmp_path / "with", member(name, b"builder\n")), read(tmp_path / "without")):
        entry, content = found[name]
        assert (entry.kind, entry.mode, content) == ("file", 0o644, b"")


def test_folders_that_programs_expect_stay(tmp_path: Path) -> None:
    """Those of apt, /run/lock and the logs' folders are there."""
    found = read(
        tmp_path / "tar",
        folder("var/log/apt"),
        folder("var/lib/apt/lists/partial", 0o700, uid=42),
        folder("run/lock", 0o1777),
        folder("dev"),
        folder("dev/pts"),
    )
    assert found["var/lib/apt/lists/partial"][0].mode == 0o700
    assert found["run/lock"][0].mode == 0o1777
    assert "var/log/apt" in found
    assert "dev" in found
    assert "dev/pts" not in found


@pytest.mark.parametrize("name", ["var/lib/apt/lists/partial", "var/cache/apt/archives/partial"])
def test_whose_apts_partial_folders_were_does_not_matter(tmp_path: Path, name: str) -> None:
    """They are `_apt`'s where that user may enter the builder's cache folder, else root's; the layer is the same."""
    sandboxed = read(tmp_path / "one", folder(name, 0o700, uid=42))[name]
    assert sandboxed == read(tmp_path / "two", folder(name, 0o700))[name]
    assert sandboxed[0].uid == 0


def test_bits_owners_and_attributes_survive(tmp_path: Path) -> None:
    """Setuid, setgid, sticky bits, groups, capabilities and links are in the layer as the packages made them."""
    value = b"\x01\x00\x00\x02\x00\x20\xff\x00"
    headers = {"SCHILY.xattr.security.capability": value.decode("utf-8", "surrogateescape")}
    path = tmp_path / "tar"
    found = read(
        path,
        member("usr/bin/su", b"su", mode=0o4755),
        folder("var/mail", 0o2775, gid=8),
        folder("tmp", 0o1777),
        folder("root", 0o700),
        member("usr/bin/ping", b"ping", mode=0o755, pax_headers=headers),
        member("bin", type=tarfile.SYMTYPE, linkname="usr/bin", mode=0o777),
        member("usr/bin/zcat", type=tarfile.LNKTYPE, linkname="./usr/bin/su", mode=0o4755),
    )
    assert found["usr/bin/su"][0].mode == 0o4755
    assert (found["var/mail"][0].mode, found["var/mail"][0].gid) == (0o2775, 8)
    assert found["tmp"][0].mode == 0o1777
    assert found["root"][0].mode == 0o700
    assert found["usr/bin/ping"][0].xattrs == {"security.capability": value}
    assert (found["bin"][0].kind, found["bin"][0].target) == ("symlink", "usr/bin")
    assert (found["usr/bin/zcat"][0].kind, found["usr/bin/zcat"][0].target) == ("hardlink", "usr/bin/su")
    assert (found["etc/shadow"][0].mode, found["etc/shadow"][0].gid) == (0o640, 42)


def test_a_device_outside_dev_is_refused(tmp_path: Path) -> None:
    """A layer holds files, folders and links; anything else is an error, not a silent loss."""
    with pytest.raises(BaseError, match="usr/odd"):
        read(tmp_path / "tar", member("usr/odd", type=tarfile.CHRTYPE))


def test_sources_are_the_suites_own(tmp_path: Path) -> None:
    """The mirror of the build and the host's key ring are not in the image's sources.list."""
    plain = read(tmp_path / "plain")["etc/apt/sources.list"]
    assert plain[1] == b"deb http://127.0.0.1/x bookworm main\n"
    stock = member("etc/apt/sources.list.stock", b"deb http://127.0.0.1/stock bookworm main\n")
    mirrored = read(tmp_path / "mirrored", stock)
    assert mirrored["etc/apt/sources.list"][1] == b"deb http://127.0.0.1/stock bookworm main\n"
    assert "etc/apt/sources.list.stock" not in mirrored


def test_sources_in_paragraphs_become_lines(tmp_path: Path) -> None:
    """Newer mmdebstraps write deb822 files; the image says the same whichever made it."""
    paragraphs = (
        "Types: deb\nURIs: http://127.0.0.1/x\nSuites: trixie trixie-updates\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/k.gpg\n\nTypes: deb\nURIs: http://127.0.0.1/s\nSuites: trixie-security\n"
        "Components: main\n"
    )
    found = read(tmp_path / "tar", member("etc/apt/sources.list.d/debian.sources.stock", paragraphs.encode()))
    assert found["etc/apt/sources.list"][1].decode().splitlines() == [
        "deb http://127.0.0.1/x trixie main",
        "deb http://127.0.0.1/x trixie-updates main",
        "deb http://127.0.0.1/s trixie-security main",
    ]
    assert not [name for name in found if name.startswith("etc/apt/sources.list.d")]


def test_what_came_for_others_may_leave_with_them(tmp_path: Path) -> None:
    """Marks are the package list's, whatever the building host's apt had marked: not what is asked for or belongs."""
    marked = member("var/lib/apt/extended_states", b"Package: dash\nArchitecture: amd64\nAuto-Installed: 1\n\n")
    status = member("var/lib/dpkg/status", (STATUS + MORE).encode())
    for members in ((status,), (status, marked)):
        text = read(tmp_path / "tar", *members)["var/lib/apt/extended_states"][1].decode()
        rows = [dict(line.split(": ") for line in row.splitlines()) for row in text.strip().split("\n\n")]
        assert [row["Package"] for row in rows] == ["data", "libz"]
        assert {row["Architecture"] for row in rows} == {"amd64"}


def test_user_torch(tmp_path: Path) -> None:
    """Number 1000 of group 0, rows in passwd and shadow, a home that group 0 shares, a folder for everybody."""
    found = read(tmp_path / "tar")
    assert found["etc/passwd"][1].endswith(b"torch:x:1000:0:torch:/home/torch:/bin/bash\n")
    assert re.search(rb"^torch:\*:3653:", found["etc/shadow"][1], re.MULTILINE)
    with tarfile.open(tmp_path / "bare", "w") as tar:
        tar.addfile(USERLAND[2][0], io.BytesIO(USERLAND[2][1]))
    assert "etc/shadow" not in {entry.path for entry, _ in userland.read(tmp_path / "bare", {}, ())}
    home = found["home/torch"][0]
    assert (home.uid, home.gid, home.mode) == (1000, 0, 0o775)
    assert found["home/torch/.bashrc"] == (
        Entry(path="home/torch/.bashrc", kind="file", mode=0o664, size=8, uid=1000),
        b"# hello\n",
    )
    assert found["workspace"][0].mode == 0o1777


def test_files_of_the_recipe_lie_over_the_userland(tmp_path: Path) -> None:
    """What images/bases says wins over what a package brought."""
    found = read(tmp_path / "tar", member("etc/hosts", b"10.0.0.1 builder\n"))
    assert found["etc/hosts"][1] == b"127.0.0.1 localhost\n"


def test_bytecode_of_packages_fits_the_layers_time(tmp_path: Path) -> None:
    """The checked-hash form, which hashes each source at each start, becomes the timestamp form with size and time."""
    hashed = b"\xa7\r\r\n" + b"\3\0\0\0" + b"hashhash" + b"code"
    found = read(
        tmp_path / "tar",
        member("usr/lib/python3.11/os.py", b"x = 1\n"),
        member("usr/lib/python3.11/__pycache__/os.cpython-311.pyc", hashed),
        member("usr/lib/python3.11/__pycache__/lost.cpython-311.pyc", hashed),
    )
    stamped = found["usr/lib/python3.11/__pycache__/os.cpython-311.pyc"][1]
    assert stamped == b"\xa7\r\r\n" + bytes(4) + specs.LAYER_TIME.to_bytes(4, "little") + b"\6\0\0\0" + b"code"
    assert found["usr/lib/python3.11/__pycache__/lost.cpython-311.pyc"][1] == hashed


def test_installed_packages(tmp_path: Path) -> None:
    """Only what is installed counts; a tree without a package database is an error."""
    write(tmp_path / "tar")
    assert userland.packages(tmp_path / "tar") == NOW
    with tarfile.open(tmp_path / "empty", "w"):
        pass
    with pytest.raises(BaseError, match="no package database"):
        userland.packages(tmp_path / "empty")


def test_recipe_is_named_by_its_content() -> None:
    """Every file of the recipe is part of the layer's key, and a spec planned with another recipe is refused."""
    real = debian.recipe()
    assert "path-exclude=/usr/share/man/*" in real.excludes
    assert "path-include=/usr/share/doc/*/copyright" in real.excludes
    digests = {
        real.digest,
        replace(real, setup="").digest,
        replace(real, rootfs={**real.rootfs, "etc/motd": b""}).digest,
    }
    assert len(digests) == 3


def test_recipe_names_no_archive() -> None:
    """Addresses of archives are left to mmdebstrap and apt."""
    files = [path for path in (ROOT / "images").rglob("*") if path.is_file()]
    assert [path for path in files if re.search(rb"https?://", path.read_bytes())] == []


def test_only_what_leads_to_the_archive_is_passed_on() -> None:
    """Proxies, in the spelling apt reads; neither locale nor zone nor anything else of the caller."""
    given = {"HTTP_PROXY": "http://127.0.0.1:1", "no_proxy": "localhost", "LANG": "C", "TZ": "X", "SECRET": "1"}
    passed = bootstrap.surroundings(given, "")
    assert bootstrap.surroundings({}, "", machine="aarch64")["TORCHKILN_ARCH"] == "arm64"
    assert passed["http_proxy"] == "http://127.0.0.1:1"
    assert passed["no_proxy"] == "localhost"
    assert (passed["TZ"], passed["SOURCE_DATE_EPOCH"]) == ("UTC", "315619200")
    assert not {"SECRET", "LANG", "HTTP_PROXY", "TORCHKILN_SOURCES"} & set(passed)


def test_mirrors() -> None:
    """The row's mirror binds, the environment's helps, and each may be an address or a whole line."""
    environment = {DEBIAN.mirror: "http://127.0.0.1/near", UBUNTU.mirror: "http://127.0.0.1/far"}
    assert distribution.sources(BASE, DEBIAN, {}) == ""
    assert distribution.sources(BASE, DEBIAN, environment) == "deb http://127.0.0.1/near bookworm main"
    dated = replace(BASE, mirror="http://127.0.0.1/dated\ndeb http://127.0.0.1/s bookworm-security main")
    assert distribution.sources(dated, DEBIAN, environment) == (
        "deb http://127.0.0.1/dated bookworm main\ndeb http://127.0.0.1/s bookworm-security main"
    )
    jammy = distribution.sources(JAMMY, UBUNTU, environment).splitlines()
    assert jammy[0] == "deb http://127.0.0.1/far jammy main universe"
    assert [line.split()[2] for line in jammy] == ["jammy", "jammy-updates", "jammy-security"]


def test_facts_say_whose_a_suite_is() -> None:
    """Debian's mirror and keys for Debian's suites, Ubuntu's for Ubuntu's."""
    assert [distribution.of(replace(BASE, suite=suite)) for suite in ("bookworm", "trixie")] == [DEBIAN] * 2
    assert [distribution.of(replace(BASE, suite=suite)) for suite in ("jammy", "noble")] == [UBUNTU] * 2


def test_keys_that_are_not_here_are_named_with_their_package(tmp_path: Path) -> None:
    """A missing key ring is the machine's lack, told before mmdebstrap starts; Debian's is left to mmdebstrap."""
    lost = replace(UBUNTU, keyring=str(tmp_path / "ubuntu.gpg"))
    with pytest.raises(HostError, match=r"keys of the jammy archive") as raised:
        distribution.keyring(JAMMY, lost)
    assert raised.value.remedy == "apt-get install ubuntu-archive-keyring"
    with pytest.raises(HostError, match=r"other\.gpg") as raised:
        distribution.keyring(replace(JAMMY, keyring=str(tmp_path / "other.gpg")), lost)
    assert raised.value.remedy == "correct its `keyring`"
    Path(lost.keyring).touch()
    assert distribution.keyring(JAMMY, lost) == lost.keyring
    assert distribution.keyring(BASE, DEBIAN) == ""


def test_a_suite_that_mmdebstrap_does_not_know_is_refused(tmp_path: Path) -> None:
    """It would take it for Debian's, and write Debian's addresses into the image."""
    with pytest.raises(HostError, match="jammy is a suite of Ubuntu") as raised:
        distribution.check_known(JAMMY, UBUNTU, tmp_path)
    assert raised.value.remedy == "apt-get install distro-info-data"
    (tmp_path / "ubuntu.csv").write_text("22.04 LTS,Jammy Jellyfish,jammy,2021-10-14\n")
    distribution.check_known(JAMMY, UBUNTU, tmp_path)


def test_command_line_does_not_depend_on_order(tmp_path: Path) -> None:
    """Equal bases ask for the same; a custom CA is for apt, a dated mirror may be out of date."""
    make = partial(bootstrap.command, target=tmp_path, setup="true", excludes=("path-exclude=/x/*",), mirrors=False)
    plain = make(BASE, authorities="")
    assert plain == make(replace(BASE, packages=BASE.packages[::-1]), authorities="")
    assert {"--include=gcc,tini", "--architectures=amd64"} < {*plain}
    assert "--architectures=arm64" in make(BASE, authorities="", machine="aarch64")
    assert "--dpkgopt=path-exclude=/x/*" in plain
    assert '--aptopt=Acquire::https::CAInfo "/ca.pem"' in make(BASE, authorities="/ca.pem")
    assert not any("Valid-Until" in option or "keyring" in option for option in plain)
    assert {"--components=main,universe", "--keyring=/keys.gpg"} < {*make(JAMMY, authorities="", keyring="/keys.gpg")}


def test_a_missing_mmdebstrap_says_what_to_run(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the command, and nothing is left behind."""
    monkeypatch.setenv("PATH", str(home.root))
    with pytest.raises(HostError) as caught:
        debian.build(home, Store(home.store), spec(NOW), recipe=RECIPE, frozen=False, environment={})
    assert "apt-get install mmdebstrap" in str(caught.value)
    assert list(home.temporary.iterdir()) == []


def test_an_error_of_apt_becomes_a_cause_without_secrets() -> None:
    """What apt says is shown, with a remedy; a proxy's password is not."""
    variables = {"http_proxy": "http://user:word@127.0.0.1:1"}
    said = [
        bootstrap._redacted(line, variables)
        for line in ("I: running", "E: Failed to fetch x through http://user:word@127.0.0.1:1")
    ]
    error = str(bootstrap._failure(BASE, DEBIAN, said, Path("/")))
    assert "can't be reached" in error
    assert "$http_proxy" in error
    assert "word" not in error


def test_a_disk_that_is_full_under_mmdebstrap_is_named(home: Home) -> None:
    """The folder that it works in, and the way out, as wherever a disk is full."""
    said = ["tar: ./usr/bin/perl: Cannot write: No space left on device", "E: mmdebstrap failed to run"]
    error = bootstrap._failure(BASE, DEBIAN, said, home.temporary)
    assert f"the disk of {home.temporary}, on the file system of " in error.what
    assert error.remedy == room.REMEDY


def test_another_recipe_is_refused(home: Home) -> None:
    """A plan and a builder that disagree make no layer."""
    planned = replace(spec(NOW), recipe="")
    with pytest.raises(PlanError, match="another recipe"):
        debian.build(home, Store(home.store), planned, recipe=RECIPE, frozen=False, environment={})


def known(home: Home, planned: specs.BaseSpec, entry: dict[str, object]) -> Store:
    """A store that holds the planned base already, with `entry` added to its index."""
    store = Store(home.store)
    data = (Entry(path="var/lib/dpkg/status", kind="file", mode=0o644), STATUS.encode())
    home.record(planned.key, {**write_layer(store, planned.title, [data]).to_json(), **entry})
    return store


def test_a_cached_base_tells_that_the_archive_moved_on(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """The difference is a warning at every use of the layer; an equal one is silent."""
    planned = spec((("bash", "5"), ("dash", "0.4")))
    store = known(home, planned, {"packages": [list(one) for one in NOW]})
    for _ in range(2):
        result = debian.build(home, store, planned, recipe=RECIPE, frozen=False, environment={})
        assert result.difference == ("- bash 5", "dash 0.4 → 0.5")
        assert "moved on" in capsys.readouterr().err
    equal = spec(NOW)
    store = known(home, equal, {"packages": [list(one) for one in NOW]})
    assert debian.build(home, store, equal, recipe=RECIPE, frozen=True, environment={}).difference == ()
    assert capsys.readouterr().err == ""


def test_frozen_refuses_a_cached_base_that_differs(home: Home) -> None:
    """--frozen holds even where no archive is asked."""
    planned = spec((("dash", "0.4"),))
    store = known(home, planned, {"packages": [list(one) for one in NOW]})
    planned = replace(planned, relock="./inv lock --target x --base")
    with pytest.raises(BaseError, match=r"dash 0\.4 → 0\.5") as raised:
        debian.build(home, store, planned, recipe=RECIPE, frozen=True, environment={})
    assert raised.value.remedy.startswith("./inv lock --target x --base accepts")


def test_packages_of_a_base_from_elsewhere_are_read_from_it(home: Home) -> None:
    """An index entry without packages, as a registry gives it, is completed."""
    planned = spec((("dash", "0.4"),))
    store = known(home, planned, {})
    result = debian.build(home, store, planned, recipe=RECIPE, frozen=False, environment={})
    assert result.packages.packages == NOW
    assert (home.lookup(planned.key) or {})["packages"] == [["dash", "0.5"]]


def test_a_base_from_elsewhere_is_read_like_any_layer(home: Home) -> None:
    """It need not be ours: how much of it is read, and what it may state, is bounded; it may be in zstd, too."""
    store, planned = Store(home.store), spec((("dash", "0.4"),))
    status = b"Package: dash\nStatus: install ok installed\nVersion: 0.5\n\n"
    sound = rawlayers.layer(store, rawlayers.file("var/lib/dpkg/status", status), media_type=ZSTD_TYPE)
    assert userland.packages_of(store, sound) == NOW
    large = rawlayers.file("var/lib/dpkg/status", status + bytes(userland.LARGEST))
    lying = replace(sound, unpacked_size=len(status))
    for layer, error in ((rawlayers.layer(store, large), BaseError), (lying, ImageError)):
        home.record(planned.key, layer.to_json())
        with pytest.raises(error):
            debian.build(home, store, planned, recipe=RECIPE, frozen=False, environment={})
        assert "packages" not in (home.lookup(planned.key) or {})


# The real thing.

ELSEWHERE = """
import json, os, sys
from pathlib import Path
from torchkiln import home as homes
from torchkiln.layers.base import debian
from torchkiln.matrix import schema
from torchkiln.oci.store import Store
from torchkiln.specs import BaseSpec
from torchkiln.lock import baselock
root, where = Path(sys.argv[1]), Path(sys.argv[2])
home = homes.prepare(homes.Home(where))
recipe = debian.recipe()
base = schema.load(root / "matrix.yaml").bases["bookworm"]
spec = BaseSpec(base=base, lock=baselock.make(()), recipe=recipe.digest)
result = debian.build(home, Store(home.store), spec, recipe=recipe, frozen=False, environment=os.environ)
print(json.dumps(result.layers[0].to_json()))
"""


@pytest.mark.network
def test_two_hosts_make_the_same_base(bookworm: Made, tmp_path: Path) -> None:
    """Another umask, zone, locale, host name, resolver, home and mirror give the same bytes, and leave no trace."""
    files = unpacked(bookworm.store, bookworm.result.layers[0])
    stock = files["etc/apt/sources.list"][1].decode()
    resolver = tmp_path / "resolv.conf"
    resolver.write_text(f"{_text('/etc/resolv.conf')}\nsearch resolver-of-the-builder.invalid\n")
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "TZ": "Pacific/Auckland",
        "LC_ALL": "C",
        "HOME": str(tmp_path),
        "MARK": "variable-of-the-builder",
        DEBIAN.mirror: re.sub(r"(https?://[^/ ]+)/", r"\1:80/", stock),
    }
    environment |= {name: value for name, value in os.environ.items() if name.lower() in bootstrap.PROXIES}
    script = 'umask 077; hostname host-of-the-builder; mount --bind "$1" /etc/resolv.conf; shift; exec "$@"'
    other = ["unshare", "--uts", "--mount", "sh", "-c", script, "sh", str(resolver)] if os.geteuid() == 0 else []
    home = tmp_path / "home-of-the-builder"
    command = [*other, sys.executable, "-c", ELSEWHERE, str(ROOT), str(home)]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == bookworm.result.layers[0].to_json()
    traces = (b"of-the-builder", b":80/", str(tmp_path).encode(), str(bookworm.home.root).encode())
    found = [(name, trace) for name, (_, data) in files.items() for trace in traces if trace in data]
    assert found == []


def _text(path: str) -> str:
    with open(path) as stream:  # noqa: PTH123
        return stream.read()


@pytest.mark.network
def test_the_real_base_is_lean_and_whole(bookworm: Made) -> None:
    """Under 300 MB, no documentation but copyrights; compilers, headers, tini, certificates; bits as they were made."""
    files = unpacked(bookworm.store, bookworm.result.layers[0])
    assert bookworm.result.layers[0].unpacked_size < 300e6
    documents = [name for name in files if name.startswith("usr/share/doc/") and files[name][0].isreg()]
    assert documents
    assert {name.rpartition("/")[2] for name in documents} == {"copyright"}
    for name in ("usr/bin/tini", "usr/bin/gcc", "usr/bin/g++", "usr/include/python3.11/Python.h", "usr/bin/apt-get"):
        assert name in files
    assert files["etc/ssl/certs/ca-certificates.crt"][1].count(b"BEGIN CERTIFICATE") > 100
    assert files["usr/bin/su"][0].mode == 0o4755
    assert (files["usr/bin/chage"][0].mode, files["usr/bin/chage"][0].gid) == (0o2755, 42)
    assert files["tmp"][0].mode == files["workspace"][0].mode == 0o1777
    assert files["root"][0].mode == 0o700
    assert {entry.mtime for entry, _ in files.values()} == {specs.LAYER_TIME}
    assert not [name for name in files if name.startswith("dev/")]
    pyc = files["usr/lib/python3.11/__pycache__/os.cpython-311.pyc"][1]
    assert pyc[4:12] == bytes(4) + specs.LAYER_TIME.to_bytes(4, "little")


@pytest.mark.network
def test_another_machines_userland_is_not_made_of_ours(home: Home) -> None:
    """A row of arm64 asks for arm64's packages, and says what is lacking where these can't be configured."""
    if Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists() or os.uname().machine == "aarch64":
        pytest.skip("this machine runs programs of arm64")
    with pytest.raises(BaseError, match="can't run programs of the row's"):
        debian.packages(home, BASE, recipe=RECIPE, environment=os.environ, machine="aarch64")


@pytest.mark.network
def test_capabilities_of_packages_are_in_the_layer(home: Home) -> None:
    """A file capability that a package sets reaches the layer, byte for byte."""
    if os.geteuid() != 0:
        pytest.skip("file capabilities need root")
    base = replace(BASE, packages=("libcap2-bin", "iputils-ping"))
    planned = specs.BaseSpec(base=base, lock=baselock.make(()), recipe=RECIPE.digest)
    recipe = replace(debian.recipe(), rootfs={})
    planned = replace(planned, recipe=recipe.digest)
    store = Store(home.store)
    result = debian.build(home, store, planned, recipe=recipe, frozen=False, environment=os.environ)
    entry, _ = unpacked(store, result.layers[0])["usr/bin/ping"]
    value = entry.pax_headers["SCHILY.xattr.security.capability"].encode("utf-8", "surrogateescape")
    assert value[:8] == b"\x01\0\0\2\0\x20\0\0"  # version 2, effective; CAP_NET_RAW is bit 13
    assert len(list(home.temporary.iterdir())) == 0


@pytest.mark.network
def test_the_archive_moving_on_is_refused_under_frozen(bookworm: Made) -> None:
    """The real base against a lock of yesterday."""
    yesterday = baselock.make((*bookworm.result.packages.packages[1:], ("zz-gone", "1")))
    planned = replace(bookworm.spec, lock=yesterday)
    entry = bookworm.home.lookup(bookworm.spec.key)
    assert entry is not None
    bookworm.home.record(planned.key, entry)
    with pytest.raises(BaseError, match="moved on"):
        debian.build(
            bookworm.home, bookworm.store, planned, recipe=bookworm.recipe, frozen=True, environment=os.environ
        )


@pytest.mark.network
def test_an_unreachable_archive_is_a_clear_error(home: Home) -> None:
    """No network: what failed, what to try, and nothing left in the cache folder."""
    shut = {**os.environ, "http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}
    planned = spec(NOW)
    with pytest.raises(BaseError) as caught:
        debian.build(home, Store(home.store), planned, recipe=RECIPE, frozen=False, environment=shut)
    assert DEBIAN.mirror in caught.value.remedy
    assert home.lookup(planned.key) is None
    assert list(home.temporary.iterdir()) == []


@pytest.mark.network
def test_a_kill_leaves_no_process_and_no_mount(tmp_path: Path) -> None:
    """After SIGKILL amid the build nothing runs on, nothing stays mounted, and `gc` can remove what lies about."""
    if os.geteuid() != 0:
        pytest.skip("mmdebstrap mounts as root only")
    home = tmp_path / "home"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ELSEWHERE, str(ROOT), str(home)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        assert child.stderr
        said = next((line for line in child.stderr if b"installing essential packages" in line), b"")
        child.kill()
    assert said
    for _ in range(100):
        if not (left := _processes_about(home)):
            break
        time.sleep(0.1)
    assert left == []
    assert str(home) not in _text("/proc/self/mounts")
    shutil.rmtree(home)


def _processes_about(path: Path) -> list[bytes]:
    """Command lines of processes that name a path."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(entry.read_bytes())
    return [line for line in found if str(path).encode() in line]


@pytest.mark.network
def test_trixie_is_lean_and_whole(trixie: Made) -> None:
    """The same recipe holds for the next suite: its compiler's folders, its Python, its own addresses."""
    files = unpacked(trixie.store, trixie.result.layers[0])
    assert trixie.result.layers[0].unpacked_size < 300e6
    for name in ("usr/bin/tini", "usr/bin/g++-14", "usr/include/python3.13/Python.h", "usr/sbin/useradd", "usr/bin/su"):
        assert name in files
    whole = [name for name, (entry, _) in files.items() if entry.isreg() and not name.startswith("var/")]
    assert not [name for name in whole if re.search(r"/lto1|lib[alt]san\.so|/libgprofng|ld\.gold|\.cpython-311", name)]
    assert re.fullmatch(r"(deb \S+ trixie\S* main\n){3}", files["etc/apt/sources.list"][1].decode())
    assert files["usr/bin/su"][0].mode == 0o4755
    assert b"torch:*:3653:" in files["etc/shadow"][1]
    pyc = files["usr/lib/python3.13/__pycache__/os.cpython-313.pyc"][1]
    assert pyc[4:12] == bytes(4) + specs.LAYER_TIME.to_bytes(4, "little")
    assert trixie.result.packages.python.startswith("3.13.")


@pytest.mark.network
@pytest.mark.sandbox
@pytest.mark.parametrize("name", ["bookworm", "trixie"])
def test_derived_images_can_use_apt_and_compilers(name: str, request: pytest.FixtureRequest) -> None:
    """The database is whole, apt installs, excluded paths stay excluded, and OpenMP code in C++ builds and runs."""
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        pytest.skip("apt in the sandbox needs root")
    made: Made = request.getfixturevalue(name)
    engine = Sandbox(partial(rootfs.tree, made.home, made.store))
    image = Image(config=Config(user="0:0"), layers=(made.result.layers[0],))
    script = """
    set -e
    python3 -c 'import ssl, sqlite3, lzma, venv'
    printf '#include <Python.h>\\nint n = PY_MAJOR_VERSION;\\n' >/tmp/p.c
    gcc -c -I$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))') /tmp/p.c -o /tmp/p.o
    test -z "$(dpkg --audit)"
    printf '#include <omp.h>\\n#include <cstdio>\\nint main() { int n = 0;\\n' >/tmp/a.cc
    printf '#pragma omp parallel reduction(+:n)\\nn += 1; std::printf("%%d\\\\n", n > 0); }\\n' >>/tmp/a.cc
    g++ -O2 -fopenmp -shared-libgcc /tmp/a.cc -o /workspace/a && /workspace/a
    test -z "$(apt-get -s autoremove | grep ^Remv)"
    apt-get update -qq && apt-get install -qq -y hello >/dev/null 2>/tmp/said || { cat /tmp/said >&2; exit 1; }
    hello
    test -z "$(dpkg --audit)"
    ls /var/cache/apt/archives/*.deb 2>/dev/null && exit 9
    ls /usr/share/doc/hello
    """
    outcome = engine.run(image, Command(argv=("sh", "-c", script), network=True))
    assert outcome.status == 0, outcome
    assert outcome.stdout.decode().split("\n")[:3] == ["1", "Hello, world!", "copyright"]
