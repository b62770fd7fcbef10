"""A dial target that opens the guest once: what was found out about the other end of its connection stays true for every later
byte.

gRPC redials by itself and tells nobody, so whoever checked who answers would not know that another VM answers now. Here the end
of the one connection is the end of the target; its owner makes a new one and checks again. All kinds of addresses go through
the relay for it. Rejected: watching gRPC's connectivity state (a quick end and redial between two looks is not seen).
"""

from __future__ import annotations

import errno
import socket

from guest_transport.addresses import Address, require_dialable
from guest_transport.relay.dial import HANDSHAKE_SECONDS, Connect, DialTarget, relayed_target
from guest_transport.relay.relay import MayReceive


class OneConnection:
    """A DialTarget and whether its one connection was made and is gone."""

    def __init__(
        self,
        address: Address,
        connect: Connect,
        *,
        handshake_seconds: float = HANDSHAKE_SECONDS,
        may_receive: MayReceive | None = None,
    ) -> None:
        """Raises AddressError and ListenError as dial_target does; `connect` opens the connection, and nothing does yet."""
        require_dialable(address)
        self._connect_once = connect
        self._opened = False
        # gRPC asked for a second one, which it does when the first takes no new calls (GOAWAY), though it may still be open.
        self._over = False
        self.target: DialTarget = relayed_target(
            address, self._connect, handshake_seconds=handshake_seconds, may_receive=may_receive
        )

    @property
    def spent(self) -> bool:
        """Whether the connection was made and takes no new calls any more; nothing can be dialled here either."""
        return self._opened and (self._over or self.target.connections == 0)

    async def _connect(self) -> socket.socket:
        self._refuse_a_second()
        connection = await self._connect_once()
        try:
            self._refuse_a_second()
        except BaseException:
            connection.close()
            raise
        self._opened = True
        return connection

    def _refuse_a_second(self) -> None:
        if self._opened:
            self._over = True
            raise ConnectionRefusedError(errno.ECONNREFUSED, "its one connection has ended")
