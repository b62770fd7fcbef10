"""In a virtual machine beside another one: a proxy that dials it by plain AF_VSOCK, and guestctl."""

from __future__ import annotations

import asyncio

from tests.vm.initrd import SCRATCH
from tests.vm.inside.scenario import Results, Server, gpus_by_guestctl, run_as_first_process, told

PROXY = f"unix:{SCRATCH}/proxy.sock"


async def scenario() -> Results:
    """Ask both agents of the neighbour once they serve."""
    guests = {"open": "vsock:43:8000", "closed": "vsock:43:8001", "nobody": "vsock:44:8000"}
    proxy = Server(
        "proxy",
        ["vmm_proxy", "serve", "--http", "off", "--grpc", PROXY, *(f"--guest={name}={at}" for name, at in guests.items())],
    )
    await asyncio.gather(proxy.says("listening on"), told("neighbour-serves"))
    return {name: await asyncio.to_thread(gpus_by_guestctl, PROXY, name) for name in guests}


if __name__ == "__main__":
    run_as_first_process(scenario)
