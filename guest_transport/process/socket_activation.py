"""The listening sockets that a service manager opened for this process and handed over with it.

With them a port is served from boot on, kept across a restart, and bound by somebody with more rights than the server needs. Only what was
meant for this process is taken (LISTEN_PID), and only listening stream sockets: anything else is a unit file that does not mean what it
says. Rejected: libsystemd through a binding, for three environment variables.

Source: sd_listen_fds(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from guest_transport.errors import ListenError, SettingsError

# sd_listen_fds(3): the first of them, behind stdin, stdout and stderr.
FIRST_FD = 3
# No unit of ours has more than two; a larger number is not from systemd.
SOCKETS_LIMIT = 64


def take_sockets(environ: MutableMapping[str, str], pid: int) -> dict[str, list[socket.socket]]:
    """Sockets handed to process `pid`, by the name of their FileDescriptorName= (the socket unit's name by default).

    Empty where there are none. The variables are removed from `environ`, and the sockets are closed in children. The caller owns the
    sockets. Raises SettingsError for variables that make no sense, ListenError for a descriptor that is no listening stream socket.
    """
    for_pid, count, names = (environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if not count or for_pid != str(pid):
        return {}
    if not count.isdecimal() or not 0 < int(count) <= SOCKETS_LIMIT:
        raise SettingsError(f"LISTEN_FDS: {count[:20]!r}: a number from 1 to {SOCKETS_LIMIT} is needed")
    fd_names = names.split(":") if names else ["unknown"] * int(count)
    if len(fd_names) != int(count):
        raise SettingsError(f"LISTEN_FDNAMES: {len(fd_names)} names for {count} sockets")
    taken: dict[str, list[socket.socket]] = {}
    try:
        for fd, name in enumerate(fd_names, FIRST_FD):
            taken.setdefault(name, []).append(_adopt(fd, name))
    except ListenError:
        for held in taken.values():
            for listener in held:
                listener.close()
        raise
    return taken


def _adopt(fd: int, name: str) -> socket.socket:
    try:
        os.set_inheritable(fd, False)
        listener = socket.socket(fileno=fd)
    except OSError as error:
        raise ListenError(
            f"socket activation: descriptor {fd} ({name[:100]}): {error.strerror}; check the socket unit"
        ) from error
    if listener.type != socket.SOCK_STREAM or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.close()
        raise ListenError(
            f"socket activation: descriptor {fd} ({name[:100]}) is not a listening stream socket; use ListenStream= and Accept=no"
        )
    listener.setblocking(False)
    return listener
