"""What a command line asks for, checked, and not yet asked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# Where the proxy listens unless its configuration says otherwise.
DEFAULT_PROXY = "unix:/run/vmm-proxy/vmm-proxy.sock"


class Subject(Enum):
    """A subcommand; the value is its name."""

    GPU = "gpu"
    INFO = "info"
    SYS = "sys"
    NET = "net"
    CONTAINERS = "containers"
    SHUTDOWN = "shutdown"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to ask one server. `vm_id` is None when a guest is asked directly, and for the list of all guests."""

    subject: Subject
    address: str
    vm_id: str | None
    timeout_seconds: float | None
    max_age_seconds: float | None
    as_json: bool
