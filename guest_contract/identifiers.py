"""What the id of a guest and the key of a label may be, for the proxy that keeps them and for clients that name them.

Whoever keeps the rule leaves no file name, no log line, no table and no metric by its name. Rejected: a pattern in each package (the two
that there were had to be changed together).
"""

from __future__ import annotations

import re

# The names `.` and `..` mean a folder wherever an id becomes part of a path or of an address.
GUEST_ID_RULE = "1 to 128 characters of [A-Za-z0-9._:-], and neither . nor .."
_GUEST_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:-]{1,128}")
LABEL_KEY_RULE = "1 to 63 characters of [A-Za-z0-9._/-]"
_LABEL_KEY = re.compile(r"[A-Za-z0-9._/-]{1,63}")


def valid_guest_id(text: str) -> bool:
    """Whether `text` keeps GUEST_ID_RULE."""
    return _GUEST_ID.fullmatch(text) is not None


def valid_label_key(text: str) -> bool:
    """Whether `text` keeps LABEL_KEY_RULE."""
    return _LABEL_KEY.fullmatch(text) is not None
