"""The rows of `make attack`: who attacks what, and what may come of it. A bound holds for the service that is attacked.

Memory is what the service took beyond what it had before the row. No honest call may fail in any row. Timings are bounds of long runs on a
machine that does nothing else; a short run reports them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from soak.attackers import SLOW_READERS
from soak.attacking_guests import ALL_HANGING, FLOODS, SIX_FLOODING, TEN_HANGING

MEBIBYTE = 1024 * 1024
CALM = "nobody"
# With 100 streams a connection grpc took 61 to 288 MiB; one peer's two connections may fill some of the allocator's arenas.
ATTACK_MEMORY_BYTES = 64 * MEBIBYTE
GUEST_MEMORY_BYTES = 32 * MEBIBYTE
# The longest wait of an honest call, scrapes left out: a page of 2.6 MB takes as long as it takes.
WAIT_SECONDS = 0.150
# Of a core, beyond what the service takes when nobody attacks.
GUEST_CPU_SHARE = 0.10
GPU_INFO = {"proxy": "/guest_api.ProxiedGuestApi/GpuInfo", "agent": "/guest_api.GuestApi/GpuInfo"}
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
PAGE = "page"


@dataclass(frozen=True, slots=True)
class Row:
    """One attack on the service `about`: its kind, what it calls, and its bounds."""

    name: str
    about: str
    attack: str = ""
    # The method that is called, PAGE for the pages, empty for an attacker with guests.
    path: str = ""
    token: bool = False
    memory_bytes: int = ATTACK_MEMORY_BYTES
    cpu_share: float | None = None


def rows() -> Sequence[Row]:
    """All rows, the calm one first: it says what the honest wait and the service takes when nobody attacks."""
    without_credential = {
        "header blocks that unpack": ("unpacking", ""),
        "a header block without end": ("continued", ""),
        "4 GiB announced": ("announced", "gpu"),
        "endless calls": ("endless", "gpu"),
        "rapid resets, unknown method": ("resets", "/no.Service/Method"),
        "1200 calls without a body": ("bodiless", "gpu"),
    }
    found = [Row(CALM, about) for about in ("proxy", "agent")]
    for about in ("proxy", "agent"):
        for name, (attack, path) in without_credential.items():
            found.append(Row(name, about, attack, path if path not in ("", "gpu") else GPU_INFO[about]))
    found.append(Row("1200 reflection streams of a viewer", "proxy", "bodiless", REFLECTION, token=True))
    found += [Row(name, "proxy", name) for name in (TEN_HANGING, ALL_HANGING)]
    found.append(Row("100 slow readers of the page", "proxy", SLOW_READERS, PAGE))
    for flood in FLOODS:
        found.append(Row(f"a guest floods: {flood}", "proxy", flood, memory_bytes=GUEST_MEMORY_BYTES, cpu_share=GUEST_CPU_SHARE))
    found.append(Row(SIX_FLOODING, "proxy", SIX_FLOODING, memory_bytes=6 * GUEST_MEMORY_BYTES))
    return found
