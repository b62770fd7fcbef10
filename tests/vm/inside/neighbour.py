"""In a virtual machine with a display device that is not NVIDIA's: two agents, one for its neighbour and one for the host alone."""

from __future__ import annotations

import asyncio

from tests.vm.inside.scenario import Results, Server, command, leave, patient_guest, run_as_first_process

NEIGHBOUR = 42


async def scenario() -> Results:
    """Serve until the test outside ends this machine."""
    closed = ["guest_service", "serve", "--http", "off", "--simulate", "h200", "--grpc", "vsock:any:8001"]
    servers = patient_guest("open", listen="vsock:any:8000", cids=[NEIGHBOUR]), Server("closed", closed)
    await asyncio.gather(*(server.says("listening on") for server in servers))
    leave({"gate": command("guest_service", "boot-gate", "-o", "json")})
    await asyncio.Event().wait()
    raise AssertionError("only the test outside ends this machine")


if __name__ == "__main__":
    run_as_first_process(scenario)
