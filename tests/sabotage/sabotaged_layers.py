"""One sabotage for each static check: a small sound image, and what to change in it."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchkiln.inspect import listing
from torchkiln.inspect.subject import Subject, subject
from torchkiln.lock.lockfile import Inputs, Lock, Pin
from torchkiln.matrix.target import Accelerator, Base, Flavour, Gpu, Release, Target
from torchkiln.oci import digest as digests
from torchkiln.oci.image import LAYER_TYPE, Config, Descriptor, Image, Layer
from torchkiln.plan import config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchkiln.inspect.listing import Contents

ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00"
"""Head of a shared object for x86-64."""
ARM_ELF = ELF[:18] + b"\xb7\x00"
SITE = "opt/venv/lib/python/site-packages"


@dataclass(frozen=True, kw_only=True)
class Member:
    """One entry of a layer."""

    path: str
    data: bytes = b""
    mode: int = 0o644
    link: str | None = None

    def header(self) -> tarfile.TarInfo:
        """As a tar holds it; a path that ends in a slash is a folder."""
        info = tarfile.TarInfo(self.path.rstrip("/"))
        info.type = tarfile.SYMTYPE if self.link else tarfile.DIRTYPE if self.path.endswith("/") else tarfile.REGTYPE
        info.mode, info.size, info.linkname = self.mode, len(self.data), self.link or ""
        return info


def contents(members: Sequence[Member]) -> Contents:
    """What the real reader makes of a real tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member in members:
            tar.addfile(member.header(), io.BytesIO(member.data))
    buffer.seek(0)
    return listing.read(buffer)


def folder(path: str, mode: int = 0o755) -> Member:
    """A folder."""
    return Member(path=f"{path}/", mode=mode)


def metadata(name: str, version: str) -> Member:
    """The METADATA of an installed package."""
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText.\n"
    return Member(path=f"{SITE}/{name}-{version}.dist-info/METADATA", data=text.encode())


TARGET = Target(
    release=Release(id="torch213", torch="2.13.0"),
    accelerator=Accelerator(id="cpu", kind="cpu"),
    gpu=Gpu(id="generic"),
    flavour=Flavour(id="runtime"),
    base=Base(id="bookworm", kind="debian", suite="bookworm", python="3.11", glibc="2.36", packages=("python3",)),
    required=("*",),
)
LOCK = Lock(
    inputs="sha256:" + "1" * 64,
    pins=(Pin(name="torch", version="2.13.0+cpu", sha256="2" * 64, filename="torch.whl", size=1),),
    digest="sha256:" + "3" * 64,
    asked=Inputs(),
)
BASE = (
    folder("etc"), Member(path="etc/hostname"), folder("home"), folder("home/torch", 0o770), folder("root", 0o700),
    folder("tmp", 0o1777), folder("usr"), folder("usr/bin"), Member(path="usr/bin/python3.11", data=ELF, mode=0o755),
    Member(path="usr/bin/su", data=ELF, mode=0o4755), folder("var"), folder("var/tmp", 0o1777),
    folder("workspace", 0o777),
)  # fmt: skip
WHEEL = (
    folder("opt"), folder("opt/venv", 0o775), folder("opt/venv/bin", 0o775), folder("opt/venv/lib", 0o775),
    folder("opt/venv/lib/python", 0o775), folder(SITE, 0o775), folder(f"{SITE}/torch"), folder(f"{SITE}/torch/lib"),
    Member(path=f"{SITE}/torch/lib/libtorch.so", data=ELF, mode=0o755),
    folder(f"{SITE}/torch-2.13.0+cpu.dist-info"), metadata("torch", "2.13.0+cpu"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Parts:
    """An image before it is looked at."""

    config: Config = field(default_factory=lambda: config(TARGET, LOCK))
    layers: tuple[tuple[Member, ...], ...] = (BASE, WHEEL)
    lock: Lock = LOCK
    repeated: bool = False
    """Whether the lowest layer is listed twice."""

    def subject(self) -> Subject:
        """As the checks see it."""
        held = tuple(contents(members) for members in self.layers)
        layers = tuple(_layer(str(number)) for number in range(len(held)))
        if self.repeated:
            held, layers = (held[0], *held), (layers[0], *layers)
        return subject(TARGET, self.lock, Image(config=self.config, layers=layers), held)

    def adding(self, *members: Member) -> Parts:
        """With one more layer."""
        return replace(self, layers=(*self.layers, members))


def _layer(name: str) -> Layer:
    digest = digests.of_bytes(name.encode())
    return Layer(
        descriptor=Descriptor(media_type=LAYER_TYPE, digest=digest, size=1), diff_id=digest, unpacked_size=1, title=name
    )


def _with_env(parts: Parts, **variables: str) -> Parts:
    return replace(parts, config=replace(parts.config, env={**parts.config.env, **variables}))


def _without_label(parts: Parts, name: str) -> Parts:
    kept = {label: value for label, value in parts.config.labels.items() if label != name}
    return replace(parts, config=replace(parts.config, labels=kept))


def _as_user(parts: Parts, user: str) -> Parts:
    return replace(parts, config=replace(parts.config, user=user))


def _at(path: str, data: bytes = b"x", mode: int = 0o644, link: str | None = None) -> Callable[[Parts], Parts]:
    return lambda parts: parts.adding(Member(path=path, data=data, mode=mode, link=link))


def _in_folder(name: str, member: Member) -> Callable[[Parts], Parts]:
    return lambda parts: parts.adding(folder(name), member)


OTHER = "2.13.0+cu130"
KEY = b"-----BEGIN OPENSSH PRIVATE KEY-----\n" + b"A" * 70 + b"\n"

SABOTAGES: tuple[tuple[str, Callable[[Parts], Parts], str], ...] = (
    ("static.labels", lambda parts: _without_label(parts, "org.torchkiln.torch"), r"org\.torchkiln\.torch is missing"),
    ("static.env", lambda parts: _with_env(parts, HTTPS_PROXY="proxy:3128"), r"HTTPS_PROXY looks like"),
    ("static.env", lambda parts: _with_env(parts, EXTRA="1"), r"variable EXTRA is not declared"),
    ("static.env", lambda parts: _with_env(parts, TZ="CET"), r"variable TZ is 'CET', the row says 'UTC'"),
    ("static.start", lambda parts: _as_user(parts, "root"), r"user root is not a number above 0"),
    ("static.start", lambda parts: _as_user(parts, "0:0"), r"user 0:0 is not a number above 0"),
    ("static.arch", _at(f"{SITE}/torch/lib/libtorch.so", ARM_ELF, 0o755), r"libtorch\.so is for aarch64"),
    (
        "static.arch",
        _in_folder("usr/lib", Member(path="usr/lib/libx.so.1", data=ARM_ELF)),
        r"libx\.so\.1 is for aarch64",
    ),
    ("static.arch", _at("usr/bin/tool", ARM_ELF, 0o755), r"/usr/bin/tool is for aarch64, the config says amd64"),
    (
        "static.arch",
        lambda parts: replace(parts, config=replace(parts.config, architecture="arm64")),
        r"the config says arm64, the row x86_64.*python3\.11 is for x86_64",
    ),
    ("static.arch", lambda parts: parts.adding(Member(path="usr/bin/.wh.python3.11")), r"no python was found"),
    ("static.layers", lambda parts: replace(parts, repeated=True), r"is there 2 times"),
    ("static.layers", lambda parts: parts.adding(), r"layer 2 \(2\) is empty"),
    ("static.folders", lambda parts: parts.adding(folder("tmp", 0o755)), r"/tmp has mode 0755, not 1777"),
    ("static.folders", lambda parts: parts.adding(folder(SITE, 0o755)), r"site-packages has mode 0755: group 0"),
    ("static.folders", _at("srv/data/file"), r"/srv/data is no member of any layer"),
    (
        "static.links",
        lambda parts: parts.adding(Member(path="lib64", link="usr")).adding(Member(path="lib64/file")),
        r"/lib64/file goes through the link /lib64",
    ),
    ("static.leftovers", _at("tmp/build.log"), r"/tmp/build\.log was left behind"),
    ("static.leftovers", _at("etc/hostname", b"builder\n"), r"/etc/hostname is not empty"),
    ("static.leftovers", _at("etc/passwd-"), r"/etc/passwd- was left behind"),
    ("static.secrets", _at("workspace/key", KEY), r"/workspace/key in layer 2 looks like a private key"),
    (
        "static.secrets",
        lambda parts: parts.adding(Member(path="workspace/key", data=KEY)).adding(Member(path="workspace/.wh.key")),
        r"/workspace/key in layer 2 looks like a private key",
    ),
    ("static.secrets", _at("etc/x.conf", b"index = https://me:word@host/\n"), r"looks like a password in an address"),
    ("static.secrets", _at("etc/environment", b"http_proxy=http://proxy\n"), r"looks like a proxy setting"),
    ("static.modes", _at("usr/bin/tool", mode=0o4755), r"/usr/bin/tool sets its user or group"),
    ("static.modes", _at("etc/open", mode=0o666), r"/etc/open is writable for everybody"),
    ("static.driver", _in_folder("usr/lib", Member(path="usr/lib/libcuda.so.1")), r"libcuda\.so\.1 is a library"),
    (
        "static.driver",
        _in_folder("opt/stubs", Member(path="opt/stubs/libnvidia-ml.so")),
        r"/opt/stubs/libnvidia-ml\.so is a stub of the driver",
    ),
    ("static.toolkit", _at("usr/bin/nvcc", mode=0o755), r"/usr/bin/nvcc belongs to devel"),
    ("static.toolkit", _at(f"{SITE}/torch/lib/libcudart.so.12"), r"libcudart\.so\.12 in a CPU row"),
    ("static.versions", _in_folder(f"{SITE}/extra-1.0.dist-info", metadata("extra", "1.0")), r"extra 1\.0 is not in"),
    (
        "static.versions",
        lambda parts: replace(parts, lock=replace(LOCK, pins=(replace(LOCK.pins[0], version="2.12.0+cpu"),))),
        r"torch 2\.13\.0\+cpu, the lock says 2\.12\.0\+cpu",
    ),
    (
        "static.suffix",
        lambda parts: replace(
            parts,
            layers=(
                BASE,
                (*WHEEL[:-2], folder(f"{SITE}/torch-2.13.0+cu130.dist-info"), metadata("torch", "2.13.0+cu130")),
            ),
            lock=replace(LOCK, pins=(replace(LOCK.pins[0], version=OTHER),)),
        ),
        r"torch 2\.13\.0\+cu130 is another variant than cpu",
    ),
)
"""Check, sabotage, and what its reason must say."""
