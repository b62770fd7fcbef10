"""Turns an address into something that gRPC can connect to, for both kinds of client.

It parses before gRPC sees anything, and says plainly what cannot be dialled. Rejected: handing gRPC the text (a missing port would
mean 443, and an unknown scheme a DNS name).
"""

from __future__ import annotations

from guest_client.errors import InvalidAddressError
from guest_transport.addresses import Address, AddressError, TcpAddress, UnixAddress, parse_address


def dialled(address: str | Address) -> Address:
    """The address of a server; raises InvalidAddressError when `address` is none, or only makes sense for listening."""
    if isinstance(address, str):
        try:
            address = parse_address(address)
        except AddressError as error:
            raise InvalidAddressError(str(error)) from error
    if isinstance(address, TcpAddress) and address.port == 0:
        raise InvalidAddressError(f"{address}: port 0 can be listened on, not dialled; give the server's port")
    return address


def grpc_target(address: Address) -> str:
    """`address` as gRPC's own resolver takes it; raises InvalidAddressError for a kind that it cannot dial."""
    if isinstance(address, UnixAddress | TcpAddress):
        return address.grpc_target
    raise InvalidAddressError(f"{address}: clients do not dial this kind of address yet; use unix:/path or HOST:PORT")
