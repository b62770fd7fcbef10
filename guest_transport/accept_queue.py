"""Gives asyncio's listening sockets a long queue without its long accept loop.

asyncio takes one number for both. With no descriptor left its loop goes on failing that many times, logs each failure, and schedules as
many retries, each of which does the same (Python 3.11 to 3.13; 58,000 log lines in ten seconds were counted). With one accept per round
it is a line a second. Rejected: an accept loop of our own (relay.py has one, for plain sockets; asyncio's also makes transports).
"""

from __future__ import annotations

import asyncio
import os
import socket

# What to give asyncio as `backlog`.
ACCEPTS_PER_ROUND = 1


def lengthen_queues(server: asyncio.Server, connections: int) -> None:
    """Let `connections` wait to be accepted at each socket of `server`, which was made with ACCEPTS_PER_ROUND."""
    for held in server.sockets:
        # listen(2) on a listening socket changes its queue only; asyncio's own object hides the call.
        with socket.socket(fileno=os.dup(held.fileno())) as same:
            same.listen(connections)
