"""`[guest_tls]` and a guest's own `tls` table: certificates as files, tried when the configuration is read.

A start with files that are missing or do not fit together is refused; later changes of the files are taken as they come.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from guest_transport.errors import SettingsError
from guest_transport.tls import ClientTls
from guest_transport.tls_settings import pem_file
from vmm_proxy.directory.guest_tls import GuestTls


class GuestTlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[guest_tls]`, for guests at HOST:PORT beyond loopback, and `tls` of one guest."""

    # PEM file with the authorities that a guest's certificate is checked by; the system's without it.
    authorities: str | None = None
    # PEM file with the certificate that the proxy shows when the guest asks (mutual TLS).
    certificate: str | None = None
    # PEM file with its key.
    key: str | None = None
    # What the guest's certificate must say; without it the host of its address.
    name: str = ""


def guest_tls(settings: GuestTlsSettings | None, where: str) -> GuestTls | None:
    """The TLS towards a guest; raises SettingsError with `where` in front. Reads the files."""
    if settings is None:
        return None
    if settings.name and not (settings.name.isascii() and settings.name.isprintable() and len(settings.name) <= 253):
        raise SettingsError(f"{where}.name: must be a host name or an IP address")
    files = ClientTls(
        _optional(settings.authorities, f"{where}.authorities"),
        _optional(settings.certificate, f"{where}.certificate"),
        _optional(settings.key, f"{where}.key"),
    )
    try:
        files.credentials()
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error
    return GuestTls(files, settings.name)


def _optional(text: str | None, where: str) -> Path | None:
    return None if text is None else pem_file(text, where)
