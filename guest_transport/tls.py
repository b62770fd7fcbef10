"""TLS from PEM files: a server's credentials that follow the files as they are replaced, and a client's.

gRPC asks for the server's certificate at each new connection, so a renewed one is used from the next connection on and no call is dropped.
Files that do not fit together (a certificate whose key is not there yet) are not used: the last good ones stay and the log says why. A
server fails closed at its start: without good files there is no server.

Rejected: watching the files (gRPC asks anyway, and three stat(2) per connection cost nothing next to a handshake); handing the files to
gRPC as they are (a wrong pair shows only as handshakes that fail).
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc

from guest_transport.errors import SettingsError
from guest_transport.settings.read import read_file

log = logging.getLogger(__name__)

# A chain of ten certificates has 20 KiB, the system's bundle of authorities 220 KiB.
FILE_LIMIT_BYTES = 1024 * 1024
# Names in gRPC's auth_context (grpc_security_constants.h); they are there only for a certificate that was verified.
_NAME_KINDS = {"dns": "peer_dns", "uri": "peer_uri", "email": "peer_email", "ip": "peer_ip"}


@dataclass(frozen=True, slots=True)
class _Files:
    """Contents that were read together and fit together."""

    # Key and chain, in gRPC's order.
    pair: tuple[bytes, bytes] | None
    authorities: bytes | None


class ServerTls:
    """A server's certificate chain and key, and the authorities of its clients when they must show a certificate (mutual TLS)."""

    def __init__(self, certificate: Path, key: Path, client_authorities: Path | None = None) -> None:
        self._paths = (certificate, key, client_authorities)
        self._marks: object = None
        self._files = _Files(None, None)

    def credentials(self) -> grpc.ServerCredentials:
        """What a listener needs; raises SettingsError when the files are missing, unreadable, or do not fit together. Reads files."""
        self._marks = _marks(self._paths)
        self._files = _read(*self._paths)
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._files),
            # gRPC documents None as an answer; its types do not.
            self.configuration_if_changed,  # type: ignore[arg-type]
            require_client_authentication=self._paths[2] is not None,
        )

    def configuration_if_changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC for each connection, in a thread of its own; None keeps what is in use."""
        marks = _marks(self._paths)
        if marks == self._marks:
            return None
        try:
            files = _read(*self._paths)
        except SettingsError as error:
            # Once for each change; a renewal in progress mends itself with the next one.
            log.warning("keeping the certificate in use: %s", error)
            files = self._files
        self._marks = marks
        if files == self._files:
            return None
        self._files = files
        log.info("using the new certificate in %s", self._paths[0])
        return _configuration(files)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The authorities that a client believes, and the certificate it shows when asked. None: the system's authorities; none to show."""

    authorities: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """What a channel needs, from the files as they are now; raises SettingsError. A new channel takes a new look.

        Reads files: in a server it is called in a thread.
        """
        if (self.certificate is None) != (self.key is None):
            raise SettingsError("a client certificate needs its key, and a key its certificate")
        files = _read(self.certificate, self.key, self.authorities)
        key, chain = files.pair or (None, None)
        return grpc.ssl_channel_credentials(files.authorities, key, chain)


class _Context(Protocol):
    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...


def certificate_names(context: _Context) -> tuple[str, ...]:
    """The subject alternative names of the caller's certificate, as verified by TLS; empty without one.

    Each with its kind in front ("dns:", "uri:", "email:", "ip:"), so that nobody's e-mail address passes for a host name.
    """
    found = context.auth_context()
    return tuple(f"{kind}:{name.decode('utf-8', 'replace')}" for kind, key in _NAME_KINDS.items() for name in found.get(key, ()))


def _configuration(files: _Files) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([files.pair] if files.pair else [], files.authorities)


def _marks(paths: Sequence[Path | None]) -> object:
    """Changes when a file is replaced or written."""
    return [_mark(path) for path in paths if path is not None]


def _mark(path: Path) -> object:
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read(chain: Path | None, key: Path | None, authorities: Path | None) -> _Files:
    files = _contents_of(chain, key, authorities)
    _check(files, chain, key, authorities)
    if files != _contents_of(chain, key, authorities):
        raise SettingsError(f"{chain or authorities}: replaced while it was read")
    return files


def _contents_of(chain: Path | None, key: Path | None, authorities: Path | None) -> _Files:
    return _Files(
        (_contents(key), _contents(chain)) if chain is not None and key is not None else None,
        _contents(authorities) if authorities is not None else None,
    )


def _contents(path: Path) -> bytes:
    data = read_file(path)
    if len(data) > FILE_LIMIT_BYTES:
        raise SettingsError(f"{path}: larger than {FILE_LIMIT_BYTES} bytes")
    return data


def _check(files: _Files, chain: Path | None, key: Path | None, authorities: Path | None) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if chain is not None and key is not None:
        try:
            # An empty password, because OpenSSL would ask at the terminal for that of an encrypted key.
            context.load_cert_chain(chain, key, password="")
        except OSError as error:
            raise SettingsError(f"{chain}: no certificate that fits the key in {key}: {_words(error)}") from error
    if files.authorities is not None:
        try:
            context.load_verify_locations(cadata=files.authorities.decode("ascii"))
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{authorities}: no PEM certificates of authorities: {_words(error)}") from error


def _words(error: OSError | UnicodeDecodeError) -> str:
    reason = error.reason if isinstance(error, (ssl.SSLError, UnicodeDecodeError)) else error.strerror
    return (reason or str(error)).replace("_", " ").lower()
