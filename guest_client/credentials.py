"""What a client shows of itself and whom it believes, checked before anything is dialled.

TLS is for `HOST:PORT` alone: on a Unix socket or a vsock the kernel, or the VMM, vouches for both sides. A token is worth as much as a
password, so it is refused where the network could read it. Rejected: gRPC's call credentials (they need a TLS channel, and a token is
useful on a Unix socket too), and a token in an environment variable or a flag (both show in /proc).
"""

from __future__ import annotations

import re
from pathlib import Path

import grpc

from guest_client.errors import CredentialsError
from guest_transport.addresses import Address, TcpAddress
from guest_transport.errors import SettingsError
from guest_transport.tls import ClientTls

# RFC 6750 allows less; a header's value may hold every visible character.
_TOKEN = re.compile(r"[!-~]+")
# Far over any token in use (a JWT with many claims has 2 KiB); all headers of a call together may have 16 KiB.
TOKEN_LIMIT_BYTES = 4096


def authorization(address: Address, tls: ClientTls | None, token: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata that shows `token` to the server at `address`; raises CredentialsError when it may not, or cannot, be sent there."""
    if tls is not None and not isinstance(address, TcpAddress):
        raise CredentialsError(f"{address}: TLS is for HOST:PORT only; leave certificates and authorities out")
    if token is None:
        return ()
    if not _TOKEN.fullmatch(token) or len(token) > TOKEN_LIMIT_BYTES:
        raise CredentialsError(f"a token has 1 to {TOKEN_LIMIT_BYTES} printable ASCII characters and no spaces")
    if isinstance(address, TcpAddress) and not address.loopback and tls is None:
        raise CredentialsError(
            f"{address}: a token is not sent without TLS beyond this machine: give authorities to check the server by"
        )
    return (("authorization", f"Bearer {token}"),)


def channel_credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    """What a TLS channel needs, from the files as they are now; raises CredentialsError. Reads files."""
    try:
        return tls.credentials()
    except SettingsError as error:
        raise CredentialsError(str(error)) from error


def read_token(file: Path) -> str:
    """The token in `file`, without the line end that editors put behind it; raises CredentialsError. Reads the file."""
    try:
        with file.open("rb") as opened:
            content = opened.read(TOKEN_LIMIT_BYTES + 2)
        token = content.decode("ascii").rstrip("\r\n")
    except OSError as error:
        raise CredentialsError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CredentialsError(f"{file}: a token is ASCII text") from error
    if not _TOKEN.fullmatch(token) or len(token) > TOKEN_LIMIT_BYTES:
        raise CredentialsError(f"{file}: must hold one token: 1 to {TOKEN_LIMIT_BYTES} printable ASCII characters and no spaces")
    return token
