"""The fleet under test, in one folder: guest agents on simulated cards and a proxy that knows them, all at Unix sockets of that folder.

Some guests are behind hybrid vsock. Each is what an operator runs, with its own configuration file; what differs from the defaults is
written here, with its reason. It refuses TCP: a port would have to be guessed to be the same after a restart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from soak.service import Service

# What the proxy names to a VMM; the stand-in has one guest per socket and asks no further.
HYBRID_PORT = 8000
# A sample a second in place of one in five: a minute then holds as many samples, and as many chances to leak, as five.
SAMPLE_TTL_SECONDS = 1.0
# A driver that hangs is given up after this; far more than a simulated sample takes, and a stopped guest's collector is no such driver.
SAMPLE_TIMEOUT_SECONDS = 10.0
# The same for the guest whose driver always hangs, so that a run sees many of its ends.
SICK_TIMEOUT_SECONDS = 1.0
# A collector that was killed is followed by another soon: the default of 30 s would leave one chance in a run.
FAILURE_BACKOFF_SECONDS = 1.0

# Cards that move, and a driver whose init takes as long as that of an H200 (0.09 s, measured).
HEALTHY_RACK = """\
driver_version = "570.172.08"
cc_enabled = true
cc_ready = true
init_seconds = 0.09
jitter = true
[[card]]
utilization_gpu = 40
utilization_memory = 20
memory_total_bytes = 150754820096
memory_used_bytes = 1048576
temperature_c = 31
power_usage_mw = 79700
[[card]]
memory_total_bytes = 150754820096
memory_used_bytes = 7516192768
temperature_c = 44
"""
# A driver that hangs in each sample.
SICK_RACK = '[[card]]\n[card.fail]\ntemperature = "hang"\n'


class Fleet:
    """The services in `folder`, whose path must leave room for the names of sockets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.guests: dict[str, Service] = {}
        # Those that the proxy reaches through a VMM's socket (soak.vmm).
        self.hybrid: set[str] = set()
        (folder / "tmp").mkdir()
        self.proxy = Service("proxy", ["vmm_proxy", "serve", "--config", str(folder / "proxy.toml")], folder)

    @property
    def services(self) -> list[Service]:
        """All of them, the proxy first."""
        return [self.proxy, *self.guests.values()]

    @property
    def proxy_address(self) -> str:
        """Where the proxy serves gRPC."""
        return f"unix:{self.folder}/proxy.sock"

    @property
    def proxy_page(self) -> Path:
        """Where the proxy serves its pages."""
        return self.folder / "proxy.http"

    @property
    def registered_file(self) -> Path:
        """The directory's state file."""
        return self.folder / "registered.json"

    @property
    def audit_file(self) -> Path:
        """The audit log."""
        return self.folder / "audit.jsonl"

    def guest_address(self, name: str) -> str:
        """Where the guest serves gRPC."""
        return f"unix:{self.folder}/{name}.sock"

    def dialled_address(self, name: str) -> str:
        """Where the proxy reaches it."""
        return f"hvsock:{self.folder}/{name}.vmm:{HYBRID_PORT}" if name in self.hybrid else self.guest_address(name)

    def guest_page(self, name: str) -> Path:
        """Where the guest serves its pages."""
        return self.folder / f"{name}.http"

    def add_guest(self, name: str, *, sick: bool = False) -> Service:
        """A guest agent of that name, not started yet; the driver of a `sick` one hangs."""
        rack_file = self.folder / f"{name}.rack.toml"
        rack_file.write_text(SICK_RACK if sick else HEALTHY_RACK, encoding="utf-8")
        config = self.folder / f"{name}.toml"
        config.write_text(
            f"[grpc]\nlisten = [{json.dumps(self.guest_address(name))}]\n"
            f'[http]\nlisten = "unix:{self.guest_page(name)}"\npublic_sysinfo = true\n'
            f"[gpu]\nsimulate = {json.dumps(str(rack_file))}\nsample_ttl_seconds = {SAMPLE_TTL_SECONDS}\n"
            f"sample_timeout_seconds = {SICK_TIMEOUT_SECONDS if sick else SAMPLE_TIMEOUT_SECONDS}\n"
            f"failure_backoff_seconds = {FAILURE_BACKOFF_SECONDS}\n"
            # A simulated guest is this machine: nobody may power it off, nor ask its container engine on and on.
            '[power]\nallow_shutdown = false\n[containers]\nsocket = "off"\n',
            encoding="utf-8",
        )
        service = Service(name, ["guest_service", "serve", "--config", str(config)], self.folder)
        self.guests[name] = service
        return service

    def configure_proxy(self, known: Iterable[tuple[str, str]]) -> None:
        """Write the proxy's configuration, with the guests (id and address) that it knows from the start."""
        guests = "".join(
            f'[[guest]]\nid = "{guest_id}"\naddress = "{address}"\nlabels = {{ rack = "soak" }}\n' for guest_id, address in known
        )
        (self.folder / "proxy.toml").write_text(
            f'[grpc]\nlisten = ["{self.proxy_address}"]\n[http]\nlisten = "unix:{self.proxy_page}"\n'
            f'[directory]\nregistered_file = "{self.registered_file}"\n[audit]\nfile = "{self.audit_file}"\n'
            f'[metrics]\nlabels = ["rack"]\n{guests}',
            encoding="utf-8",
        )

    async def discard(self) -> None:
        """End whatever still runs, at once."""
        for service in self.services:
            await service.discard()
