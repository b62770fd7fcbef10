"""Which processes hold a TCP port or a Unix socket's path: read from /proc, as far as the one who asks may look.

Only a process's name and number are told, never its command line, which may hold a secret.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil

from guest_transport.sockets.socket_files import bound_at

# A server and the service manager that opened the port for it are two; a list of forked workers helps nobody.
_SHOWN = 4


def port_holders(port: int) -> str:
    """Who listens on TCP `port`, in words; empty when nobody does. Blocks."""
    listening = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    return _in_words(each.pid for each in listening if each.laddr and each.laddr.port == port)


def path_holders(path: str) -> str:
    """Who has a socket open that is bound to `path`, in words; empty when nobody has. Blocks."""
    # psutil gives a path here, an address for TCP; its types know the address only.
    names = {path, bound_at(path)}
    return _in_words(each.pid for each in psutil.net_connections("unix") if str(each.laddr) in names)


def _in_words(pids: Iterable[int | None]) -> str:
    found = dict.fromkeys(pids)
    known = [_name(pid) for pid in found if pid is not None]
    if not known:
        return "a process of another user (run this as root to see which)" if found else ""
    return ", ".join(known[:_SHOWN]) + (f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else "")


def _name(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{psutil.Process(pid).name()} (pid {pid})"
    return f"pid {pid}"
