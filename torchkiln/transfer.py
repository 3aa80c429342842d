"""Images between this machine and registries: push, pull, copy, and a look at what the registry then serves."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchkiln import composition, finished, planning
from torchkiln.console import note, step, warn
from torchkiln.errors import ImageError, TorchkilnError
from torchkiln.lock import fit
from torchkiln.oci import copying, served
from torchkiln.oci import document as documents
from torchkiln.oci.image import REF_NAME
from torchkiln.oci.naming import pinned
from torchkiln.oci.pull import pull as fetched
from torchkiln.oci.push import pushing
from torchkiln.oci.reference import destination

if TYPE_CHECKING:
    from collections.abc import Collection

    from torchkiln.matrix.target import Target
    from torchkiln.oci.digest import Digest
    from torchkiln.oci.image import Image
    from torchkiln.oci.push import Pushed
    from torchkiln.oci.registry import Registry
    from torchkiln.oci.served import Served
    from torchkiln.project import Project

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,200}")
"""What an image of the store may be called: it goes into paths and command lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """An image that is in a registry, and was looked at there."""

    pushed: Pushed
    served: Served

    def to_json(self) -> dict[str, Any]:
        """One entry of `push --json` and `copy --json`; other programs rely on it."""
        return {
            "name": self.pushed.name,
            "digest": self.pushed.digest,
            "reference": self.pushed.reference,
            "sent": self.pushed.sent,
            "blobs": dict(self.pushed.blobs),
            "verified": "bytes" if self.served.read else "sizes",
        }

    def __str__(self) -> str:
        how = list(self.pushed.blobs.values())
        done = ", ".join(f"{how.count(kind)} {kind}" for kind in ("sent", "mounted", "there") if kind in how)
        read = "every byte verified" if self.served.read else "sizes verified"
        return f"{self.pushed.name} {self.pushed.digest}: {done}, {self.pushed.sent / 1e6:.1f} MB; {read}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """An image of a registry that is in the store now."""

    name: str
    """In the store."""
    digest: Digest
    reference: str
    """`HOST/REPOSITORY@sha256:…`: of the index, where it was chosen from one."""
    size: int
    """Bytes of its layers."""

    def to_json(self) -> dict[str, Any]:
        """What `pull --json` prints; other programs rely on it."""
        return {"target": self.name, "digest": self.digest, "reference": self.reference, "compressed_size": self.size}


def push(project: Project, target: Target, to: str, *, plain: Collection[str] = (), whole: bool = False) -> Sent:
    """Put the built image of a row at `HOST/REPOSITORY[:TAG]`; it is looked at before the tag: sizes, or all of it.

    What is damaged there is sent again; VerifyError if that doesn't help: then there is no tag. Its layers are indexed
    for `build --from`.
    """
    with fit.named(target), project.home.lock("use", shared=True), step(f"push {target.ref}"):
        found = finished.manifest_of(project, target)
        finished.hold_row(project, target)
        finished.hold_lock(project, target)
        manifest = project.store.read(found.digest)
        with pushing(to, project.store, environment=project.environment, plain=plain) as pusher:
            pushed = pusher.put(manifest, found.media_type)
        seen = _looked(project, pushed, plain, whole=whole)
        anew = {digest: why for digest, why in seen.wrong.items() if pushed.blobs.get(digest) != "sent"}
        if anew:
            warn(f"damaged there, and sent again: {'; '.join(anew.values())}")
        with pushing(to, project.store, environment=project.environment, plain=plain) as pusher:
            if anew:
                pusher.anew.update(anew)
                pushed = pusher.put(manifest, found.media_type)
                seen = _looked(project, pushed, plain, whole=whole)
            served.held(seen, pushed.reference, served.KEPT)
            pusher.tag(manifest, found.media_type)
            _index(project, target, pusher.delivery.registry, manifest)
    return Sent(pushed=pushed, served=seen)


def _index(project: Project, target: Target, registry: Registry, manifest: bytes) -> None:
    """Let `build --from` find the layers, if it is known what they were made from."""
    again = f"{fit.build(target)} --push {registry.where}"
    try:
        lock, plan = planning.locked(project, target)[0], planning.planned(project, target)
        found = composition.recalled(project, plan, lock, documents.manifest(manifest).layers)
    except TorchkilnError as error:  # the image is there all the same
        note(f"`build --from` will not find its layers: {error.what}")
        return
    if found is None:
        note(
            f"`build --from` will not find its layers: it isn't known what they were made from; {again} writes an index"
        )
    else:
        composition.index(registry, *found, lock, composition.empty(project, plan))


def copy(project: Project, source: str, to: str, *, plain: Collection[str] = (), whole: bool = False) -> Sent:
    """Put the image or index at `HOST/REPOSITORY[:TAG]` or `…@sha256:…` at another place, as `push` does."""
    environment, notes = project.environment, project.store.uploads
    destination(to)  # told before anybody is asked
    exact = pinned(source, environment=environment, plain=plain)
    looked: list[Served] = []

    def accept(copied: Pushed) -> None:
        looked.append(served.held(_looked(project, copied, plain, whole=whole), copied.reference))

    with project.home.lock("use", shared=True):  # notes on uploads would be collected
        copied = copying.copy(exact, to, environment=environment, plain=plain, notes=notes, accept=accept)
    return Sent(pushed=copied, served=looked[-1])


def _looked(project: Project, pushed: Pushed, plain: Collection[str], *, whole: bool) -> Served:
    """What the registry serves, by digest."""
    with step("read it all again" if whole else "ask for the sizes"):
        return served.look(pushed.reference, environment=project.environment, plain=plain, whole=whole)


def pull(project: Project, source: str, *, name: str = "", plain: Collection[str] = ()) -> Received:
    """Put the image at `HOST/REPOSITORY[:TAG]` or `…@sha256:…` into the store, where builds of its target lie.

    Its name there is what its manifest says, else the target that its label states, unless one is given. Every layer
    is hashed and unpacked once, and held against manifest and config. ImageError if no name is known; otherwise as
    `oci.pull.pull`.
    """
    if name:
        _hold_name(name, source)
    project.store.refs()  # a name that can't be set is told of before anything is fetched
    exact = pinned(source, environment=project.environment, plain=plain)

    def accept(image: Image) -> None:
        _hold_name(_name(name, image), exact)

    with project.home.lock("use", shared=True), step(f"pull {exact}"):
        found = fetched(
            exact,
            project.store,
            machine=platform.machine(),
            environment=project.environment,
            plain=plain,
            accept=accept,
        )
        known = _name(name, found.image)
        before = project.store.refs().get(known)
        if before and before.digest != found.manifest.digest:
            note(f"it takes the place of {before.digest}, which was {known} until now")
        project.store.tag(known, found.manifest)
    return Received(name=known, digest=found.manifest.digest, reference=exact, size=found.image.compressed_size)


def _name(given: str, image: Image) -> str:
    """What the image is called in the store; perhaps not a name."""
    return given or image.name or image.config.labels.get(REF_NAME, "")


def _hold_name(found: str, where: str) -> None:
    """ImageError for what can't be a name in the store."""
    if not _NAME.fullmatch(found):
        what = f"not a name for an image: {found[:100]!r}" if found else "the image does not say which target it is"
        raise ImageError(what, where=where, remedy="--name NAME, an id of ./inv matrix to use it as that target")
