"""What a label may be, in the directory and in a selector alike, so that every label fits a table and a metric."""

from __future__ import annotations

import re

from guest_contract.identifiers import LABEL_KEY_RULE, valid_label_key
from guest_transport.errors import SettingsError
from guest_transport.process.logs import escape

LABELS_LIMIT = 32
LABEL_VALUE_LIMIT_BYTES = 256
_NO_LABEL_NAME = re.compile(r"[^A-Za-z0-9_]")


def check_labels(labels: dict[str, str], where: str) -> dict[str, str]:
    """`labels` if each is fit for a selector, a table and a metric label; raises SettingsError."""
    if len(labels) > LABELS_LIMIT:
        raise SettingsError(f"{where}: at most {LABELS_LIMIT} labels are allowed")
    for key, value in labels.items():
        if not valid_label_key(key):
            raise SettingsError(f"{where}: a key must be {LABEL_KEY_RULE}, not {key[:80]!a}")
        if not value.isprintable() or len(value.encode()) > LABEL_VALUE_LIMIT_BYTES:
            raise SettingsError(f"{where}.{key}: must be printable and at most {LABEL_VALUE_LIMIT_BYTES} bytes")
    return labels


def label_name(key: str) -> str:
    """What may stand in the name of a Prometheus label of a directory's `key`."""
    return _NO_LABEL_NAME.sub("_", key)


def check_guest_labels(labels: dict[str, str], where: str) -> dict[str, str]:
    """The same for a guest's own, whose keys become names of Prometheus labels (/sd): raises SettingsError for keys that become one."""
    keys: dict[str, list[str]] = {}
    for key in check_labels(labels, where):
        keys.setdefault(label_name(key), []).append(key)
    for name, alike in keys.items():
        if len(alike) > 1:
            named = ", ".join(ascii(key) for key in sorted(alike))
            raise SettingsError(f"{where}: {named} would be one Prometheus label, {name}: keep one of them")
    return labels


def shown_label(text: str) -> str:
    """`text` of somebody else as a label's value: printable, and no longer than a label may be."""
    return escape(text).encode()[:LABEL_VALUE_LIMIT_BYTES].decode(errors="ignore")
