"""deploy/examples/hybrid-vsock, running: the proxy with the example's guests, a VMM's socket at the example's path, an agent behind it."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.examples.readme import EXAMPLES, commands, copied
from tests.proxy import processes
from tests.transport.vmm import guest_at, vmm

PAGE = EXAMPLES / "hybrid-vsock/README.md"


@pytest.fixture
async def root() -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        yield Path(folder)


async def guestctl(line: str, proxy: str) -> tuple[int, str]:
    """What a line of the page prints as JSON."""
    _, *arguments = line.split()
    command = (sys.executable, "-m", "guest_client.guestctl", "--proxy", proxy, "-o", "json", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


@pytest.mark.timeout(120)
async def test_the_proxy_dials_the_vmms_socket_and_says_the_guests_port(root: Path) -> None:
    copied("hybrid-vsock", root, root)
    for vm in ("fc1", "ch1"):
        (root / "run/vms" / vm).mkdir(parents=True)
    (root / "proxy.toml").write_text(f"[directory]\ndir = '{root}/guests.d'\n")
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "guest_service", "serve", "--grpc", f"unix:{root}/agent", "--http", "off", "--simulate", "h200"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert agent.stderr is not None
    try:
        while b"listening on" not in await asyncio.wait_for(agent.stderr.readline(), 40):
            pass
        address = f"unix:{root}/proxy"
        listing, gpus = commands(PAGE, "4.")
        async with (
            vmm(root / "run/vms/ch1/vsock.sock", guest_at(root / "agent")) as cloud_hypervisor,
            processes.serving("--config", str(root / "proxy.toml"), "--grpc", address),
        ):
            status, said = await guestctl(gpus, address)
            assert status == 0, said
            assert len(json.loads(said)["gpus"]) == 1
            assert set(cloud_hypervisor.lines) == {b"CONNECT 8000\n"}
            _, said = await guestctl(listing, address)
            states = {guest["id"]: guest["state"] for guest in json.loads(said)["guests"]}
            assert states == {"ch1": "serving", "fc1": "unreachable"}, "no VMM listens for fc1"
    finally:
        agent.terminate()
        await agent.communicate()


async def test_what_the_page_says_of_a_guest_that_is_not_reached_is_what_is_seen(root: Path) -> None:
    copied("hybrid-vsock", root, root)
    (root / "run/vms/fc1").mkdir(parents=True)
    (root / "proxy.toml").write_text(f"[directory]\ndir = '{root}/guests.d'\n")
    address = f"unix:{root}/proxy"
    page = PAGE.read_text(encoding="utf-8")

    async def hang_up(*_: object) -> None:
        """As Firecracker does when nothing listens in the guest."""

    async with processes.serving("--config", str(root / "proxy.toml"), "--grpc", address):
        _, said = await guestctl("guestctl gpu ch1", address)
        assert "its socket does not exist" in said
        assert "`its socket does not exist`" in page
        async with vmm(root / "run/vms/fc1/vsock.sock", hang_up):
            _, said = await guestctl("guestctl gpu fc1", address)
        assert "the VMM closed the connection" in said
        assert "`the VMM closed the connection`" in page
