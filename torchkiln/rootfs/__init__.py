"""Layers → unpacked tree: each layer unpacked once, each stack of layers merged once by hard links.

What lies under `rootfs/` is shared by every run through hard links, so it must never be written to: engines
mount it read-only or as the lower side of an overlay.
"""

from torchkiln.rootfs.stack import merge, tree
from torchkiln.rootfs.unpack import unpack

__all__ = ["merge", "tree", "unpack"]
