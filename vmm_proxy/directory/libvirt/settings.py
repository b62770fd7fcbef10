"""`[libvirt]` of the configuration: whose domains become guests.

Only a libvirt of this host is taken, because a CID means a VM of this host: followed from elsewhere, another VM would answer.
"""

from __future__ import annotations

import importlib.util
from urllib.parse import urlsplit

import msgspec

from guest_transport.errors import SettingsError

MODULE = "libvirt"


class LibvirtSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[libvirt]`."""

    # Whose running domains become guests, such as qemu:///system; none by default, and then nothing of libvirt is needed.
    uri: str | None = None
    # The vsock port on which guest-service listens in every VM.
    port: int = 8000


def check_libvirt(settings: LibvirtSettings, where: str) -> LibvirtSettings | None:
    """`settings` if a libvirt is to be followed; raises SettingsError."""
    if not 1 <= settings.port < 0xFFFFFFFF:
        raise SettingsError(f"{where}: libvirt.port: must be from 1 to {0xFFFFFFFE}")
    if settings.uri is None:
        return None
    shown = ascii(settings.uri[:120])
    try:
        parts = urlsplit(settings.uri)
    except ValueError:
        parts = None
    if parts is None or not parts.scheme or not settings.uri.isprintable():
        raise SettingsError(f"{where}: libvirt.uri: {shown} is no libvirt URI such as qemu:///system")
    if parts.netloc:
        raise SettingsError(f"{where}: libvirt.uri: {shown} names another host, whose CIDs mean nothing here; use qemu:///system")
    return settings


def require_module() -> None:
    """Raise SettingsError when libvirt's Python module is missing."""
    if importlib.util.find_spec(MODULE) is None:
        raise SettingsError(
            "libvirt.uri is set, but Python's libvirt module is missing: install guestscope[libvirt] (or Debian's python3-libvirt)"
        )
