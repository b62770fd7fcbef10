"""`[tls]` of a server's configuration: its certificate as files, tried when the configuration is checked.

Guest agent and proxy share it, so that both take the same keys and refuse in the same words. A start with files that are missing or do
not fit together is refused; later changes of the files are taken as they come (guest_transport.tls). Relative paths are refused: a service
has no folder that an operator would think of. Rejected: PEM text in the configuration, which would put a key where people paste from.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from guest_transport.errors import SettingsError
from guest_transport.tls import ServerTls


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[tls]`: what the TCP listeners show, and whom they believe."""

    # PEM file with the certificate that callers are shown, and those between it and its authority.
    certificate: str
    # PEM file with its key.
    key: str
    # PEM file. With it a client must show a certificate of these authorities (mutual TLS).
    client_authorities: str | None = None


def server_tls(settings: TlsSettings | None, where: str = "") -> ServerTls | None:
    """The TLS of the listeners; raises SettingsError with `where`, joined as it is, in front. Reads the files."""
    if settings is None:
        return None
    tls = ServerTls(
        pem_file(settings.certificate, f"{where}tls.certificate"),
        pem_file(settings.key, f"{where}tls.key"),
        None if settings.client_authorities is None else pem_file(settings.client_authorities, f"{where}tls.client_authorities"),
    )
    try:
        tls.credentials()
    except SettingsError as error:
        raise SettingsError(f"{where}tls: {error}") from error
    return tls


def pem_file(text: str, where: str) -> Path:
    """The absolute path in `text`; raises SettingsError with `where` in front. Does not look whether it is there."""
    path = Path(text)
    if not path.is_absolute():
        raise SettingsError(f"{where}: must be an absolute path, not {text[:120]!a}")
    return path
