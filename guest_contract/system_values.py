"""A guest's memory, swap, processor time and traffic, judged: what is impossible is unknown. The message itself passes untouched."""

from __future__ import annotations

from guest_api.guest_api_pb2 import SystemInfo
from guest_contract.card_fields import MEMORY_LIMIT_BYTES

# A total and its parts, bytes.
Sizes = tuple[int | None, ...]


def memory(info: SystemInfo) -> Sizes:
    """Total, available, used, free."""
    return _judged(info.total_memory, info.available_memory, info.used_memory, info.free_memory)


def swap(info: SystemInfo) -> Sizes:
    """Total, used, free; a guest without swap has none of each."""
    return _judged(info.total_swap, info.used_swap, info.free_swap)


def _judged(total: int, *parts: int) -> Sizes:
    """A part is at most the total; of an impossible total nothing is kept."""
    if total > MEMORY_LIMIT_BYTES:
        return (None,) * (len(parts) + 1)
    if max(parts) <= total:
        return (total, *parts)
    return (total, *(part if part <= total else None for part in parts))


# A kernel knows ten modes, and a machine with containers some hundreds of interfaces; a guest may send any number, of any length.
MODES_LIMIT, INTERFACES_LIMIT, NAME_LIMIT_CHARACTERS = 16, 64, 64
# Four thousand processors for a thousand years.
CPU_SECONDS_LIMIT = 1.0e14


def cpu_seconds(info: SystemInfo) -> dict[str, float]:
    """Seconds by mode, the first MODES_LIMIT; without what is no time (infinite, not a number, negative)."""
    possible = (each for each in info.cpu_times[:MODES_LIMIT] if len(each.mode) <= NAME_LIMIT_CHARACTERS)
    return {each.mode: each.seconds for each in possible if 0 <= each.seconds <= CPU_SECONDS_LIMIT}


def traffic(info: SystemInfo) -> dict[str, tuple[int, int, int, int]]:
    """Bytes received and sent, and errors of both, by interface: the first INTERFACES_LIMIT."""
    possible = (each for each in info.network[:INTERFACES_LIMIT] if len(each.interface) <= NAME_LIMIT_CHARACTERS)
    return {
        each.interface: (each.received_bytes, each.transmitted_bytes, each.receive_errors, each.transmit_errors)
        for each in possible
    }
