"""What a caller shows of itself: its socket's peer, the names of its certificate, its token.

Read once, at the begin of a call, from the kernel, from TLS and from metadata; nothing is judged here. A token is hashed at once,
so that none lies about in memory for the length of a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from guest_transport.peers import ListenerPeer, Peer, TcpPeer
from guest_transport.tls import certificate_names
from vmm_proxy.errors import CallError
from vmm_proxy.policy.tokens import token_sha256, valid_token

_SCHEME = "bearer"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of one call."""

    peer: Peer
    # Subject alternative names with their kind in front, as verified by TLS.
    certificate: tuple[str, ...] = ()
    token_sha256: bytes | None = None


# A servicer context is generic in its messages, which do not matter here.
def read_credentials(context: grpc.aio.ServicerContext[Any, Any], peer: Peer) -> Credentials:
    """What `peer` shows in `context`; raises CallError UNAUTHENTICATED for an authorization that is no bearer token."""
    if isinstance(peer, ListenerPeer):
        # Whatever else it shows, it is whoever may open that listener.
        return Credentials(peer)
    # TLS is spoken on TCP only, and asking for it costs.
    certificate = certificate_names(context) if isinstance(peer, TcpPeer) else ()
    authorizations = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    return Credentials(peer, certificate, _only_token(authorizations) if authorizations else None)


def _only_token(authorizations: Sequence[str | bytes]) -> bytes:
    if len(authorizations) == 1 and isinstance(authorizations[0], str):
        scheme, _, token = authorizations[0].partition(" ")
        if scheme.lower() == _SCHEME and valid_token(token):
            return token_sha256(token)
    raise CallError(grpc.StatusCode.UNAUTHENTICATED, "authorization: must be one bearer token")
