"""A guest's memory and swap, judged: None for what is impossible. The message passes untouched, as with cards (card_values)."""

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
