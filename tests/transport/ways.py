"""The ways to a server, on each of which its bounds must hold: a Unix socket, TCP, and TCP with TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc
import trustme

from guest_transport.addresses import Address, TcpAddress, UnixAddress
from guest_transport.options import channel_options
from guest_transport.tls import ServerTls

NAMES = ["unix", "tcp", "tls"]


@dataclass(frozen=True)
class Way:
    """One of NAMES, with its files in `folder`."""

    name: str
    folder: Path
    authority: bytes = b""

    @property
    def secured(self) -> bool:
        return self.name == "tls"

    @property
    def listen(self) -> Address:
        """Where the server listens."""
        return UnixAddress(f"{self.folder}/s") if self.name == "unix" else TcpAddress("127.0.0.1", 0)

    @property
    def arguments(self) -> list[str]:
        """The same for a server process."""
        return [str(self.listen), *([f"--tls={self.folder}"] if self.secured else [])]

    @property
    def server_tls(self) -> ServerTls | None:
        return server_tls(self.folder) if self.secured else None

    @property
    def client_context(self) -> ssl.SSLContext | None:
        """For a caller with bare sockets."""
        if not self.secured:
            return None
        context = ssl.create_default_context(cadata=self.authority.decode())
        context.set_alpn_protocols(["h2"])
        return context

    def channel(self, target: str) -> grpc.aio.Channel:
        """For a caller with gRPC."""
        address = TcpAddress("127.0.0.1", int(target.rpartition(":")[2])) if self.name != "unix" else self.listen
        assert isinstance(address, TcpAddress | UnixAddress)
        options = channel_options(address)
        if not self.secured:
            return grpc.aio.insecure_channel(address.grpc_target, options=options)
        return grpc.aio.secure_channel(address.grpc_target, grpc.ssl_channel_credentials(self.authority), options=options)


def way_of(name: str, folder: Path) -> Way:
    """The way `name`; makes its certificates."""
    if name != "tls":
        return Way(name, folder)
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(folder / "key"))
    (folder / "chain").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    return Way(name, folder, authority.cert_pem.bytes())


def server_tls(folder: Path) -> ServerTls:
    """The server's side of the certificates in `folder`."""
    return ServerTls(folder / "chain", folder / "key")
