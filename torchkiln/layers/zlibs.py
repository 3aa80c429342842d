"""zlib's inflate, called directly, since no Python module exposes how it pauses at every deflate block (Z_BLOCK).

zlib-ng's, which the package zlib-ng holds, else the system's, which takes half as long again. They only read: no byte
that is written depends on which one it was, or on its version.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zlib_ng import zlib_ng

from torchkiln.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable

Z_BLOCK = 5
Z_OK = 0
Z_BUF_ERROR = -5
AT_BLOCK = 128
"""Set in `data_type` when inflate paused between two blocks; its lowest three bits say how many bits are unused."""
_RAW = -15
"""windowBits of zlib.h: no header or trailer, 32 KiB of history."""


class Stream(ctypes.Structure):
    """z_stream of zlib.h; zlib-ng's is laid out alike where a long has 64 bits."""

    _fields_ = (
        ("next_in", ctypes.c_void_p),
        ("avail_in", ctypes.c_uint),
        ("total_in", ctypes.c_ulong),
        ("next_out", ctypes.c_void_p),
        ("avail_out", ctypes.c_uint),
        ("total_out", ctypes.c_ulong),
        ("msg", ctypes.c_char_p),
        ("state", ctypes.c_void_p),
        ("zalloc", ctypes.c_void_p),
        ("zfree", ctypes.c_void_p),
        ("opaque", ctypes.c_void_p),
        ("data_type", ctypes.c_int),
        ("adler", ctypes.c_ulong),
        ("reserved", ctypes.c_ulong),
    )


@dataclass(frozen=True, slots=True)
class Library:
    """The functions of zlib's interface that are used; all but `begin` are C functions of a stream."""

    begin: Callable[[Any], int]
    inflate: Callable[[Any, int], int]
    reset: Callable[[Any], int]
    end: Callable[[Any], int]
    prime: Callable[[Any, int, int], int]
    dictionary: Callable[[Any, bytes, int], int]


def zlib_next() -> Library:
    """zlib-ng; AttributeError if the package was built without exporting it."""
    library = ctypes.CDLL(zlib_ng.__file__)
    return Library(
        begin=lambda stream: int(library.zng_inflateInit2(stream, _RAW)),
        inflate=library.zng_inflate,
        reset=library.zng_inflateReset,
        end=library.zng_inflateEnd,
        prime=library.zng_inflatePrime,
        dictionary=library.zng_inflateSetDictionary,
    )


def zlib_system() -> Library:
    """The system's zlib; HostError if there is none."""
    try:
        library = ctypes.CDLL("libz.so.1")
    except OSError as error:
        raise HostError("zlib's shared library libz.so.1 is missing", remedy="apt-get install zlib1g") from error
    library.zlibVersion.restype = ctypes.c_char_p
    return Library(
        begin=lambda stream: int(library.inflateInit2_(stream, _RAW, library.zlibVersion(), ctypes.sizeof(Stream))),
        inflate=library.inflate,
        reset=library.inflateReset,
        end=library.inflateEnd,
        prime=library.inflatePrime,
        dictionary=library.inflateSetDictionary,
    )


def fastest() -> Library:
    """zlib-ng if it can be reached."""
    try:
        return zlib_next()
    except (AttributeError, OSError):
        return zlib_system()
