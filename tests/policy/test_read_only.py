"""The read-only socket: whoever opens it is a viewer of all guests, whatever else it shows, and all who do are one caller."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc

from guest_api import guest_api_pb2
from guest_fleet.v1 import fleet_pb2
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options
from guest_transport.server.grpc_server import GrpcServer
from guest_transport.sockets import unix
from tests.eventually import eventually
from tests.other_users import as_user
from tests.policy.callers import bearer, needs_root, rules, token
from tests.policy.two_tenants import DENIED, NOBODY, asked, code_of, no_gpu
from tests.proxy import processes
from tests.proxy.raw_guest import Stream, raw_guest
from tests.proxy.running import Proxy, running_proxy
from vmm_proxy.policy.roles import Role
from vmm_proxy.upstream.limits import PROXY_CALLS_OF_ONE

OK = grpc.StatusCode.OK
READERS = 4321


@contextlib.asynccontextmanager
async def read_only(folder: Path) -> AsyncIterator[tuple[Proxy, Proxy]]:
    """A proxy with a guest, as its first socket shows it, and as the read-only one does."""
    strict = rules(socket_group=None, tokens=(token("admin", Role.ADMIN),))
    address = UnixAddress(str(folder / "read-only"))
    async with (
        raw_guest(str(folder / "guest"), no_gpu) as guest,
        running_proxy(folder / "proxy", access=strict, read_only=address) as proxy,
    ):
        proxy.add("vm1", guest.address, labels={"tenant": "blue"})
        reader = Proxy(proxy.parts, address)
        try:
            yield proxy, reader
        finally:
            await reader.channel.close()


async def test_a_reader_reads_and_does_nothing_else_though_it_is_root_or_shows_an_admins_token(sockets: Path) -> None:
    async with read_only(sockets) as (_, reader):
        for metadata in ((), bearer("admin")):
            assert await code_of(asked(reader, "GpuInfo", "vm1", metadata)) is OK
            assert await code_of(asked(reader, "Shutdown", "vm1", metadata)) is DENIED
            request = fleet_pb2.ListGuestsRequest()
            answer = await reader.fleet.ListGuests(request, timeout=10, metadata=metadata)
            assert [(guest.id, guest.address) for guest in answer.guests] == [("vm1", "")]
            deregister: Callable[..., Awaitable[bytes]] = reader.channel.unary_unary(
                "/guest_fleet.v1.DirectoryService/DeregisterGuest"
            )
            assert await code_of(deregister(b"", timeout=10, metadata=metadata)) is DENIED


async def test_a_token_that_nobody_knows_is_not_read(sockets: Path) -> None:
    async with read_only(sockets) as (proxy, reader):
        unknown = (("authorization", "Basic what-is-this"),)
        assert await code_of(asked(proxy, "GpuInfo", "vm1", unknown)) is grpc.StatusCode.UNAUTHENTICATED
        assert await code_of(asked(reader, "GpuInfo", "vm1", unknown)) is OK


async def test_a_name_that_stands_for_root_on_the_other_listener_is_no_name_here(sockets: Path) -> None:
    async with read_only(sockets) as (proxy, reader):
        peers = proxy.parts.server.peers
        await proxy.gpu_info("vm1")
        # As anybody reads them in /proc/net/unix.
        names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "@guestscope-peer-" in line]
        assert names
        assert reader.parts.read_only_server is not None
        for name in names:
            assert str(reader.parts.read_only_server.peers.of(Named(name))) == "the read-only socket"
        assert {str(peers.of(Named(name))) for name in names} - {"unix"}


class Named:
    """A call from the socket that /proc/net/unix shows as `name`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def peer(self) -> str:
        return f"unix-abstract:{self._name.removeprefix('@')}"


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


async def test_all_readers_together_hold_no_more_calls_than_one_caller(sockets: Path) -> None:
    async with read_only(sockets) as (proxy, reader), contextlib.AsyncExitStack() as stack:
        methods = ("GpuInfo", "SysInfo", "NetworkInfo", "ListContainers")
        names = [f"hangs{number}" for number in range(PROXY_CALLS_OF_ONE // len(methods))]
        hanging = [await stack.enter_async_context(raw_guest(str(sockets / name), silence)) for name in names]
        for name, guest in zip(names, hanging, strict=True):
            proxy.add(name, guest.address)
        held = [getattr(reader.api, method)(guest_api_pb2.Id(id=name), timeout=60) for name in names for method in methods]
        await eventually(lambda: sum(len(guest.requests) for guest in hanging) >= PROXY_CALLS_OF_ONE)
        refused = reader.api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=20)
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await refused.details() or "").startswith(f"the read-only socket has {PROXY_CALLS_OF_ONE} calls to guests")
        assert await code_of(asked(proxy, "GpuInfo", "vm1", ())) is OK
        for call in held:
            call.cancel()


async def test_a_listener_with_all_its_connections_takes_no_more_until_one_ends(sockets: Path) -> None:
    address = UnixAddress(str(sockets / "s"))
    server = GrpcServer([], connections_limit=2)
    await server.start([address])
    try:
        async with contextlib.AsyncExitStack() as stack:
            channels = [
                await stack.enter_async_context(grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)))
                for _ in range(2)
            ]
            for channel in channels:
                await channel.channel_ready()
            third = await unix.connect(address.path)
            stack.callback(third.close)
            # A server that takes the connection speaks first (RFC 9113, 3.4).
            async with asyncio.timeout(20):
                assert await asyncio.get_running_loop().sock_recv(third, 1) == b""
            await channels.pop().close()
            again = await stack.enter_async_context(
                grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address))
            )
            await again.channel_ready()
    finally:
        await server.stop(0)


CONFIG = """
[grpc]
listen = ["unix:{folder}/proxy"]
read_only_listen = ["unix:{folder}/ro"]
read_only_group = {group}

[[guest]]
id = "vm1"
address = "unix:{folder}/guest"
"""


@needs_root
async def test_the_socket_belongs_to_its_group_whose_members_may_open_it(sockets: Path) -> None:
    config = sockets / "config.toml"
    config.write_text(CONFIG.format(folder=sockets, group=READERS))
    sockets.chmod(0o711)
    async with processes.serving("--config", str(config)) as proxy:
        await proxy.log_line(f"listening on unix:{sockets}/ro")
        made = (sockets / "ro").stat()
        assert (stat.S_IMODE(made.st_mode), made.st_uid, made.st_gid) == (0o660, os.geteuid(), READERS)
        assert (sockets / "proxy").stat().st_gid == os.getegid()
        _, out, _ = await processes.run("doctor", "--config", str(config))
        assert f"unix:{sockets}/ro: a proxy answers, serving" in out


@needs_root
async def test_a_group_that_the_proxy_is_no_member_of_is_named_at_the_start(sockets: Path) -> None:
    config = sockets / "config.toml"
    config.write_text(CONFIG.format(folder=sockets, group=READERS))
    os.chown(sockets, NOBODY, NOBODY)
    config.chmod(0o644)
    proxy = await processes.start("serve", "--config", str(config), "--http", "off", prefix=as_user(NOBODY, NOBODY))
    status, _, err = await proxy.end()
    assert status != 0
    assert f"unix:{sockets}/ro: cannot listen: it may not be given to the group {READERS}" in err, err
    assert not (sockets / "ro").exists()
