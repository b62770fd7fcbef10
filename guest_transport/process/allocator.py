"""Tells glibc's malloc to keep little: two arenas at most, large blocks given back at once, and the rest on request.

gRPC's core allocates on a dozen threads. By default each gets an arena of its own, up to eight a core, and what one thread frees another
does not use: under a disturbed fleet the proxy grew by 4 MiB an hour that nobody held (docs/decisions/memory.md). By default, too, one
freed message of 16 MiB raises the size from which blocks are given back for the life of the process. An environment variable would do the
same only for whoever starts us by the unit. Rejected: jemalloc (a library that the host must have, before us). `_ctypes` bare, because
`ctypes` costs 2.5 ms of an agent's start. Without glibc (musl) nothing is set and nothing given back.
"""

from __future__ import annotations

import _ctypes
import asyncio
import contextlib

LIBRARY = "libc.so.6"
# malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
# Two threads of one process seldom allocate at one moment: most of the time they hold Python's lock, or wait.
ARENAS = 2
# glibc's own first values; setting them keeps them.
LARGE_BYTES = 128 * 1024
GIVE_BACK_SECONDS = 60.0


def keep_little() -> bool:
    """Bound arenas and what stays of large blocks, for this process from now on; False where malloc is not glibc's."""
    return sum(_call("mallopt", *setting) for setting in _SETTINGS) == len(_SETTINGS)


def give_back() -> bool:
    """Give the free pages of every arena back to the kernel; True if there were any."""
    return bool(_call("malloc_trim", 0))


async def give_back_beside() -> None:
    """The same in a thread: 1 to 2 ms mostly, and 80 ms after a great page (measured); Python's lock is free meanwhile."""
    # No thread to be had: the machine is at its limit of tasks, and memory is not what it lacks.
    with contextlib.suppress(RuntimeError):
        await asyncio.to_thread(give_back)


_SETTINGS = ((M_ARENA_MAX, ARENAS), (M_MMAP_THRESHOLD, LARGE_BYTES), (M_TRIM_THRESHOLD, LARGE_BYTES))


def _call(name: str, *arguments: int) -> int:
    """What the C library's function of this name returns; 0 without glibc."""
    try:
        function = _ctypes.dlsym(_ctypes.dlopen(LIBRARY), name)
    except OSError:
        return 0
    return int(_ctypes.call_function(function, arguments))
