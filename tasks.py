"""Command line: the tasks that invoke offers; torchkiln/commands/ has a module for each kind."""

from __future__ import annotations

from torchkiln.commands.bench import bench
from torchkiln.commands.build import base, build
from torchkiln.commands.development import check, fix, test
from torchkiln.commands.engine import load, shell
from torchkiln.commands.lock import lock
from torchkiln.commands.machine import doctor, gc
from torchkiln.commands.matrix import matrix
from torchkiln.commands.plan import plan
from torchkiln.commands.registry import copy, pull, push
from torchkiln.commands.validate import validate, verify

__all__ = [
    "base",
    "bench",
    "build",
    "check",
    "copy",
    "doctor",
    "fix",
    "gc",
    "load",
    "lock",
    "matrix",
    "plan",
    "pull",
    "push",
    "shell",
    "test",
    "validate",
    "verify",
]
