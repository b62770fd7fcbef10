"""Who may see guests' addresses and change the directory.

As long as there are no roles these are the callers on a Unix socket, whom the file system already let in. It fails closed:
whoever comes another way is none.
"""

from __future__ import annotations

from guest_transport.peers import Peer, UnixPeer


def is_admin(caller: Peer) -> bool:
    """Whether `caller` is an administrator."""
    return isinstance(caller, UnixPeer)
