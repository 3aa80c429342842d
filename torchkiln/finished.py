"""Images that were built: found by the row's name, opened, held against their lock and their digests."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.console import warn
from torchkiln.engines import table
from torchkiln.errors import ImageError, LockError, StaleLockError, StoreError, VerifyError
from torchkiln.lock import fit, rows
from torchkiln.oci import document as documents
from torchkiln.oci.store import Store
from torchkiln.oci.verify import lying
from torchkiln.oci.verify import verify as recompute
from torchkiln.plan import LOCK_LABEL, ROW_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torchkiln.matrix.target import Target
    from torchkiln.oci.image import Descriptor, Image
    from torchkiln.oci.load import Foreign
    from torchkiln.oci.verify import Mismatch
    from torchkiln.project import Project


@contextmanager
def subject(project: Project, target: Target, reference: str = "") -> Iterator[Foreign]:
    """The built image of a row, or the one at `oci:DIR[:REF]` or `docker-daemon:NAME`, as long as it is needed."""
    if not reference:
        manifest_of(project, target)
        hold_lock(project, target)
    with (
        fit.named(target),
        project.home.lock("use", shared=True),
        tempfile.TemporaryDirectory(prefix="image-", dir=project.home.temporary) as scratch,
    ):
        yield _opened(project, target, reference, Store(Path(scratch)))


def _opened(project: Project, target: Target, reference: str, scratch: Store) -> Foreign:
    """The image; an error about its content says what to do about it."""
    try:
        return table.open_image(reference or f"oci:{project.home.store}:{target.ref}", scratch)
    except (ImageError, StoreError, VerifyError) as error:
        if (error.remedy and not isinstance(error, StoreError)) or reference.startswith("docker-daemon:"):
            raise
        remedy = f"./inv verify {fit.options(target)} removes what is damaged, {fit.build(target)} remakes it"
        if reference:
            remedy = (
                f"copy the image again from where it came; ./inv verify --image {reference} tells all that is wrong"
            )
        raise type(error)(error.what, where=error.where, remedy=remedy) from error


def manifest_of(project: Project, target: Target) -> Descriptor:
    """What the store calls the built image of a row; StoreError if there is none."""
    found = project.store.refs().get(target.ref)
    if found is None:
        remedy = f"{fit.build(target)}, with --from HOST/REPOSITORY if its layers lie in a registry"
        raise StoreError(f"{target.ref} is not built", where=str(project.home.store), remedy=remedy)
    return found


def verify(project: Project, target: Target) -> tuple[Mismatch, ...]:
    """Everything wrong with the built image of a row; blobs that lie are removed, so that `build` makes them anew."""
    with project.home.lock("use", shared=True):
        found = _mismatches(project, manifest_of(project, target))
    if not found:
        hold_lock(project, target)
    return found


def hold_digests(project: Project, target: Target, image: Image) -> None:
    """VerifyError for a blob that is not what the image says, also of what was not made just now."""
    if found := _mismatches(project, image):
        told = "\n".join(str(one) for one in found)
        raise VerifyError(f"digests do not hold:\n{told}", where=target.ref, remedy=fit.build(target))


def _mismatches(project: Project, image: Descriptor | Image) -> tuple[Mismatch, ...]:
    """Everything wrong with an image of the store; blobs that lie are removed."""
    found = recompute(project.store, image)
    for digest in lying(found):
        project.store.discard(digest)
    return found


def hold_lock(project: Project, target: Target) -> None:
    """Warn of an image that was built for another row, or from another lock than the row has now.

    StoreError where the row has a user's additions: it may be that of another list with the same name.
    """
    said, now = _labels(project, target), ""
    if stranger := _of_another(target, said):
        if target.extra:
            raise stranger
        warn(str(stranger))
        return
    try:
        now = rows.read(project.locks, target).digest
    except (LockError, StaleLockError) as error:
        why = error.what
    else:
        why = "it has changed since, or was another list's" if target.extra else "it has changed since"
    if said.get(LOCK_LABEL, "") in {"", now}:
        return
    what, again = f"{target.ref} was built from another lock than the row has now", fit.build(target)
    if target.extra:
        raise StoreError(f"{what}: {why}", where=str(target.extra.file), remedy=again)
    warn(f"{what}: {why}; {again} builds it anew")


def hold_row(project: Project, target: Target) -> None:
    """StoreError for an image that was built for another row, and got this one's name when it was pulled."""
    if stranger := _of_another(target, _labels(project, target)):
        raise stranger


def _of_another(target: Target, said: Mapping[str, str]) -> StoreError | None:
    """What is wrong with an image whose label names another row; None if it names this one, or none."""
    other = said.get(ROW_LABEL, target.id)
    if other == target.id:
        return None
    remedy = f"{fit.build(target)}; or for that image: ./inv pull without --name, then --target {other}"
    return StoreError(f"{target.ref} is an image of another row here: its label says {other}", remedy=remedy)


def lock_digest(project: Project, target: Target) -> str:
    """The digest of the lock that the built image of a row names; empty if there is none, or it can't be read."""
    return _labels(project, target).get(LOCK_LABEL, "")


def _labels(project: Project, target: Target) -> Mapping[str, str]:
    """What the built image of a row says of itself; nothing if there is none, or it can't be read."""
    found = project.store.refs().get(target.ref)
    try:
        manifest = documents.manifest(project.store.read(found.digest)) if found else None
        return documents.document(project.store.read(manifest.config.digest)).config.labels if manifest else {}
    except (ImageError, StoreError):
        return {}
