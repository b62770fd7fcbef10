"""The client SDK: a guest or a VMM proxy, asynchronous or not, behind one exception tree.

    with ProxyClient("unix:/run/vmm-proxy/vmm-proxy.sock") as proxy:
        for card in proxy.gpu_info("vm1").gpus:
            print(card.uuid, card.utilization_gpu if card.HasField("utilization_gpu") else "unknown")

Answers are the messages of the contract (guest_api.guest_api_pb2, guest_fleet.v1.fleet_pb2); errors stand in guest_client.errors. The names
below are loaded when they are first used, because gRPC takes 75 ms to import (Python 3.11, one core of a build machine) and
`guestctl --help` needs none of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guest_client.async_client import AsyncGuestClient, AsyncProxyClient
    from guest_client.errors import CallError, ClientError
    from guest_client.sync_client import GuestClient, ProxyClient
    from guest_transport.tls import ClientTls

__all__ = ["AsyncGuestClient", "AsyncProxyClient", "CallError", "ClientError", "ClientTls", "GuestClient", "ProxyClient"]

_HOMES = {
    "AsyncGuestClient": "guest_client.async_client",
    "AsyncProxyClient": "guest_client.async_client",
    "CallError": "guest_client.errors",
    "ClientError": "guest_client.errors",
    "ClientTls": "guest_transport.tls",
    "GuestClient": "guest_client.sync_client",
    "ProxyClient": "guest_client.sync_client",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
