"""What `make attack` attacks, in one folder: a proxy and an agent on simulated cards, each at a Unix socket and on loopback TCP.

The honest come over Unix sockets or from 127.0.0.1, attackers from an address of their own. Tokens and configuration are as an operator
writes them; limits are the defaults, because those are what is measured.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from pathlib import Path

from soak.attacking_guests import GUESTS, socket_name
from soak.service import Service, ServiceError

CROWD = 100
# By the token's name: role and, as TOML, the guests that it is for.
TOKENS = {
    "red": 'role = "viewer"\nguests = { tenant = "red" }\n',
    "blue": 'role = "viewer"\nguests = { tenant = "blue" }\n',
}
LISTENING = re.compile(r"127\.0\.0\.1:(\d+)")


class Attacked:
    """The services in `folder`, whose path must leave room for the names of sockets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens = {name: secrets.token_hex(32) for name in TOKENS}
        (folder / "tmp").mkdir()
        self.proxy = Service("proxy", ["vmm_proxy", "serve", "--config", str(folder / "proxy.toml")], folder)
        self.agent = Service("agent", ["guest_service", "serve", "--config", str(folder / "agent.toml")], folder)
        self.crowd = Service("crowd", ["soak.crowd", str(folder), str(CROWD)], folder)
        self.services = {"proxy": self.proxy, "agent": self.agent}

    async def start(self) -> None:
        """Start everything; raises ServiceError."""
        tokens = [
            f'[[token]]\nname = "{name}"\nhash = "sha256:{hashlib.sha256(token.encode("ascii")).hexdigest()}"\n{TOKENS[name]}'
            for name, token in self.tokens.items()
        ]
        (self.folder / "tokens.toml").write_text("".join(tokens), encoding="utf-8")
        (self.folder / "tokens.toml").chmod(0o600)
        (self.folder / "agent.toml").write_text(
            f'[grpc]\nlisten = ["{self.unix("agent")}", "127.0.0.1:0"]\n'
            f'[http]\nlisten = "unix:{self.folder}/agent.http"\npublic_sysinfo = true\n'
            '[gpu]\nsimulate = "h200x8"\n[power]\nallow_shutdown = false\n[containers]\nsocket = "off"\n',
            encoding="utf-8",
        )
        guests = [("healthy", "agent.sock", "blue")]
        guests += [(f"green{number}", f"green{number}.sock", "green") for number in range(CROWD)]
        guests += [(f"red{number}", socket_name(number), "red") for number in range(GUESTS)]
        (self.folder / "proxy.toml").write_text(
            f'[grpc]\nlisten = ["{self.unix("proxy")}", "127.0.0.1:0"]\n[http]\nlisten = "127.0.0.1:0"\n'
            f'[access]\ntoken_file = "{self.folder}/tokens.toml"\n'
            + "".join(
                f'[[guest]]\nid = "{guest}"\naddress = "unix:{self.folder}/{file}"\nlabels = {{ tenant = "{tenant}" }}\n'
                for guest, file, tenant in guests
            ),
            encoding="utf-8",
        )
        for service in (self.crowd, self.agent, self.proxy):
            await service.start()

    def unix(self, name: str) -> str:
        """Where a service serves gRPC on a Unix socket."""
        return f"unix:{self.folder}/{name}.sock"

    def tcp(self, name: str) -> str:
        """Where a service serves gRPC on TCP: its log tells the port that the kernel gave it."""
        return f"127.0.0.1:{self._ports(name)[0]}"

    @property
    def page(self) -> tuple[str, int]:
        """Where the proxy serves its pages."""
        return "127.0.0.1", self._ports("proxy")[1]

    @property
    def agent_page(self) -> Path:
        """Where the agent serves its pages."""
        return self.folder / "agent.http"

    async def discard(self) -> None:
        """End whatever still runs, at once."""
        for service in (self.proxy, self.agent, self.crowd):
            await service.discard()

    def _ports(self, name: str) -> list[int]:
        ports = [int(port) for port in LISTENING.findall(self.services[name].log_text())]
        if len(ports) < (2 if name == "proxy" else 1):
            raise ServiceError(f"{name} does not tell its ports\n{self.services[name].said()}")
        return ports
