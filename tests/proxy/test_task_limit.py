"""A proxy that may start no process: what follows libvirt waits, and everything else goes on."""

from __future__ import annotations

from pathlib import Path

import grpc

from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from tests.proxy.processes import serving
from tests.task_limit import limitable, no_more_tasks


async def test_at_the_limit_of_tasks_the_proxy_lives_and_says_why_libvirt_is_not_followed(sockets: Path) -> None:
    # There to be found, and of no use: the process that talks to libvirt ends, and is started again and again.
    (sockets / "libvirt.py").write_text("")
    (sockets / "config.toml").write_text('[libvirt]\nuri = "test:///default"\n')
    sockets.chmod(0o777)
    flags = ("--config", f"{sockets}/config.toml", "--grpc", f"unix:{sockets}/proxy")
    async with serving(*flags, env={"PYTHONPATH": str(sockets)}, prefix=limitable()) as proxy:
        with no_more_tasks(proxy.process.pid):
            await proxy.log_line("cannot be started: no task is free")
            options = [("grpc.default_authority", "localhost")]
            async with grpc.aio.insecure_channel(f"unix:{sockets}/proxy", options) as channel:
                stub = fleet_pb2_grpc.FleetServiceStub(channel)
                answer = await stub.ListGuests(fleet_pb2.ListGuestsRequest(), timeout=20)
                assert not answer.guests
        assert (await proxy.stop())[0] == 0
