"""What gRPC's C core must find in the environment when it is imported; it looks once.

GRPC_ENABLE_FORK_SUPPORT: its fork handlers abort the process (134, nothing in the log) or hang it with the interpreter's lock held. A
server never forks, but where no task is to be had (pids.max, TasksMax=) vfork fails, and Python's subprocess falls back to fork. So they
are off, whatever the environment says. GRPC_VERBOSITY: C core writes to stderr past all logging, and whoever connects chooses the words;
an operator may want them, so what the environment says wins. Rejected: both in the units (a server that is started by hand needs them too).
"""

from __future__ import annotations

import os


def prepare_grpc() -> None:
    """Set both; must run before grpc is imported anywhere in this process."""
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
