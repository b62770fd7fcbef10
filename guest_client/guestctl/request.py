"""What a command line asks for, checked, and not yet asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from guest_contract.card_fields import ROWS

# Where the proxy listens unless its configuration says otherwise.
PROXY_VARIABLE = "GUESTCTL_PROXY"
# Options whose value may come from the environment, for the proxy alone: a guest is never shown what is meant for the proxy.
ACCESS_VARIABLES = {
    "ca": "GUESTCTL_CA",
    "cert": "GUESTCTL_CERT",
    "key": "GUESTCTL_KEY",
    "token_file": "GUESTCTL_TOKEN_FILE",
}
# The options that every command has, before or after its name.
SHARED = ("output", "timeout", "guest", "proxy", "hosts", "context", "tls", "ca", "cert", "key", "token_file")
DEFAULT_PROXY = "unix:/run/vmm-proxy/vmm-proxy.sock"
# Asked in its place by who may open this one alone.
READ_ONLY_PROXY = "unix:/run/vmm-proxy/vmm-proxy-ro.sock"


class Subject(Enum):
    """A subcommand that asks something; the value is its name."""

    GPU = "gpu"
    INFO = "info"
    SYS = "sys"
    NET = "net"
    CONTAINERS = "containers"
    SHUTDOWN = "shutdown"
    LIST = "list"
    TOP = "top"
    WATCH = "watch"
    HEALTH = "health"
    CARD = "card"


class Output(Enum):
    """How the answer is shown; the value is what -o takes."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


# What `top` sorts cards by: the value is what --sort takes, its first letter the key that chooses it.
SORTABLE = tuple(row for row in ROWS if row.sort)
BY_GUEST = "guest"
SORTS = (*(row.sort for row in SORTABLE), BY_GUEST)


@dataclass(frozen=True, slots=True)
class Access:
    """What is shown to the server, and whom to believe. `tls` is set with any of the files, and alone for the system's authorities."""

    tls: bool = False
    authorities: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    token_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which guests of a fleet: those with these ids, and of them those with all these labels; with neither, all.

    `by_default`: nobody said which, so that a context's selector may.
    """

    ids: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    by_default: bool = False

    def __str__(self) -> str:
        return ", ".join([*self.ids, *(f"{key}={value}" for key, value in self.labels.items())])


@dataclass(frozen=True, slots=True)
class Proxy:
    """One of several proxies: what it is called, where it listens, and what is shown to it."""

    host: str
    address: str
    access: Access


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to ask one server, or several proxies.

    `vm_id` is None when a guest is asked directly; `chosen` is there when a fleet is asked. `proxies` is empty unless several are asked;
    then `address` and `access` are those of none.
    """

    subject: Subject
    address: str
    vm_id: str | None = None
    chosen: Chosen | None = None
    output: Output = Output.TABLE
    access: Access = Access()
    proxies: tuple[Proxy, ...] = ()
    timeout_seconds: float | None = None
    max_age_seconds: float | None = None
    # Of `card` alone: an index, a UUID or a PCI address.
    card: str = ""
    # Of `top` and `watch` alone.
    interval_seconds: float = 5.0
    count: int | None = None
    sort: str = SORTS[0]
    changes_only: bool = True
