"""How a guest's texts stand on the page; numbers are said by guest_contract.words."""

from __future__ import annotations

import re

from guest_transport.process.logs import escape

# A name longer than this is cut on the page; the longest legitimate one is an image reference of 255 bytes with its digest.
TEXT_LIMIT = 400


def pci(address: str) -> str:
    """The address without its domain when that is zero: `01:00.0`, but `00010000:02:00.0`."""
    short = re.fullmatch(r"0+:([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])", address)
    return short[1] if short else text(address)


def text(words: str) -> str:
    """A driver's or container's own words, cut to a bound, on one line: control characters and direction marks stand as escapes."""
    return escape(words if len(words) <= TEXT_LIMIT else words[:TEXT_LIMIT] + "…")
