"""Refuses a request for a host that this server is not: in front of every page, also of events, health and what does not exist.

A browser asks any address under the name that a page gives it. Whoever owns a name can let it resolve to 127.0.0.1, and a page of theirs
then reads ours as its own (DNS rebinding). What a name must resolve to for that, an address literal does not need to: so addresses,
`localhost`, the machine's own name and names that the operator lists are answered, everything else is 421 (RFC 9110, 15.5.20).

A request without Host (HTTP/1.0) comes from no browser and is answered. Unix sockets need no check, no browser reaches one; PageServer
leaves it out there. Rejected: asking what the name resolves to (that is the attacker's to say), comparing Origin (a page that is loaded
from the name has none to compare), and an exception for /healthz and /readyz (a probe asks by address).
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from collections.abc import Collection

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from guest_transport.process.repeated_lines import about

log = logging.getLogger(__name__)

# uri-host [ ":" port ] (RFC 9110, 7.2); what the host may be is decided afterwards.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([^\[\]:/?#@\s]{1,255}))(?::[0-9]{0,5})?", re.ASCII)
_SHOWN_CHARACTERS = 100


class HostNames:
    """`app` for requests that name an address, localhost, this machine, or one of `names`."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = {"localhost", *map(_plain, names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it with 421."""
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if all(map(self._ours, hosts)) and len(hosts) <= 1:
            await self._app(scope, receive, send)
            return
        client = scope["client"][0] if scope.get("client") else "unknown"
        reason = f"this is not {hosts[0][:_SHOWN_CHARACTERS]!a}: ask for an address or a name of http.host_names"
        log.warning("a page for %s refused: %s", client, reason, extra=about(client))
        await PlainTextResponse(f"misdirected: {reason}\n", 421, {"connection": "close"})(scope, receive, send)

    def _ours(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        version_6, name = match.groups()
        if version_6 is not None:
            return _is_address(version_6, ipaddress.IPv6Address)
        name = _plain(name)
        return name in self._names or name in own_names() or _is_address(name, ipaddress.IPv4Address)


def own_names() -> set[str]:
    """What this machine calls itself, with its domain and without. Read each time: a VM gets its name while it starts."""
    name = _plain(os.uname().nodename)
    return {name, name.partition(".")[0]} - {""}


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(text: str, kind: type[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
