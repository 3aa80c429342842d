"""A connection to the Docker engine, or to Podman by its socket in DOCKER_HOST; what fails there becomes our error."""

from __future__ import annotations

import os
import socket
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import docker
from docker.errors import APIError, DockerException, NotFound

from torchkiln.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker import DockerClient

PATIENCE = 3600
"""Seconds without a byte from the engine: unpacking an image is silent for minutes."""


@contextmanager
def connected() -> Iterator[DockerClient]:
    """A connection, closed after; what the SDK raises becomes an EngineError."""
    where = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        _knock(where)
        with closing(docker.from_env(timeout=PATIENCE)) as client:
            yield client
    except NotFound as error:
        raise EngineError(str(error.explanation), where=where) from error
    except APIError as error:
        raise EngineError(f"Docker refuses: {error.explanation or error}", where=where) from error
    except (DockerException, OSError) as error:
        remedy = "start Docker, or set DOCKER_HOST; the sandbox engine needs neither"
        raise EngineError(f"no Docker engine answers: {error}", where=where, remedy=remedy) from error


def _knock(where: str) -> None:
    """Connect once ourselves: the SDK forgets to close a socket on which nobody answers."""
    if where.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(where.removeprefix("unix://"))
