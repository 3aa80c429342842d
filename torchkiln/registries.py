"""The registries of a build: asked before anything is made, given layers as they are made, and the name last."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from torchkiln import composition
from torchkiln.errors import ROW
from torchkiln.oci import remote as remotes
from torchkiln.oci import served
from torchkiln.oci.image import MANIFEST_TYPE, manifest_bytes
from torchkiln.oci.push import pushing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchkiln.lock.lockfile import Lock
    from torchkiln.oci.image import Image
    from torchkiln.oci.push import Pushed, Pusher
    from torchkiln.oci.remote import Remote
    from torchkiln.plan import ImagePlan
    from torchkiln.project import Project


def sending(project: Project, to: str, *, plain: Sequence[str], origin: str) -> AbstractContextManager[Pusher | None]:
    """What sends layers while others are made; leaving it gives up what was not named. None if nothing is pushed."""
    if not to:
        return nullcontext()
    return pushing(to, project.store, environment=project.environment, plain=plain, source=origin)


def ask(project: Project, pusher: Pusher | None, origin: str, *, plain: Sequence[str]) -> None:
    """Registries that can't be had, or refuse, are told of before anything is fetched or made."""
    if pusher:
        pusher.ask()
    elif origin:
        with at(project, origin, plain=plain) as remote:
            remote.registry.admitted()


def at(project: Project, origin: str, *, plain: Sequence[str], row: str = ROW) -> AbstractContextManager[Remote]:
    """The layers of `HOST/REPOSITORY`, which need not be made; `row` is how a command names what they are for."""
    return remotes.at(origin, project.store, environment=project.environment, plain=plain, row=row)


def distrust(pusher: Pusher | None, remote: Remote) -> None:
    """Let what a registry is known to have damaged be sent to it again, once that is made here."""
    if pusher and pusher.place.host == remote.registry.reference.host:
        pusher.anew.update(remote.damaged)


def finish(
    project: Project,
    pusher: Pusher,
    made: tuple[ImagePlan, ImagePlan, Image, Lock],
    *,
    plain: Sequence[str],
    whole: bool,
) -> Pushed:
    """Wait for the last layer, look at what the registry serves, set the tag, and index the layers by key.

    Of what was sent anew every byte is read. VerifyError for what is not as it was sent: then there is no tag.
    `made` is a plan, the plan as it was carried out, without what turned out empty, the image, and the wheels' lock.
    """
    planned, plan, image, lock = made
    pushed = pusher.send(image)
    seen = served.look(pushed.reference, environment=project.environment, plain=plain, whole=whole, read=pusher.anew)
    served.held(seen, pushed.reference, served.KEPT if seen.wrong.keys() & pusher.anew else served.AGAIN)
    pusher.tag(manifest_bytes(image), MANIFEST_TYPE)
    composition.index(pusher.delivery.registry, plan, image, lock, composition.empty(project, planned))
    return pushed
