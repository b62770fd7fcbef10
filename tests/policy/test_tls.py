"""Callers over TLS: who their certificate says they are, and what happens while certificates and tokens are renewed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import trustme

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from guest_transport.addresses import TcpAddress, parse_address
from guest_transport.options import channel_options
from guest_transport.tls import ClientTls
from tests.policy.callers import bearer, secret
from tests.policy.certificates import write, write_authority
from tests.policy.two_tenants import code_of, no_gpu
from tests.proxy import processes
from tests.proxy.raw_guest import Stream, raw_guest
from vmm_proxy.policy.tokens import token_hash

OK, DENIED, NO_CREDENTIALS = grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
GRANTS = """
[[access.grant]]
role = "operator"
certificate = "dns:ops.example"
[[access.grant]]
role = "viewer"
certificate = "uri:spiffe://example/scraper"
guests = { tenant = "blue" }
"""


def config(folder: Path, guest: str, *, tls: str = "", access: str = "", listen: str = "127.0.0.1:0") -> Path:
    path = folder / "proxy.toml"
    path.write_text(
        f"[grpc]\nlisten = ['{listen}']\n{tls}\n{access}\n[[guest]]\nid = 'vm1'\naddress = '{guest}'\nlabels = {{ tenant = 'blue' }}\n"
    )
    return path


def tokens(folder: Path, *names: str, role: str = "viewer") -> str:
    """The token file with `names`, and the setting that names it."""
    path = folder / "tokens.toml"
    path.write_text(
        "".join(f"[[token]]\nname = '{name}'\nhash = '{token_hash(secret(name))}'\nrole = '{role}'\n" for name in names)
    )
    return f"[access]\ntoken_file = '{path}'\n"


def tls(folder: Path, *, mutual: bool) -> str:
    more = f"client_authorities = '{folder}/ca'\n" if mutual else ""
    return f"[tls]\ncertificate = '{folder}/server.crt'\nkey = '{folder}/server.key'\n{more}"


@contextlib.asynccontextmanager
async def channel(address: TcpAddress, secured: ClientTls) -> AsyncIterator[grpc.aio.Channel]:
    credentials = await asyncio.to_thread(secured.credentials)
    async with grpc.aio.secure_channel(address.grpc_target, credentials, options=channel_options(address)) as opened:
        yield opened


async def codes(address: TcpAddress, secured: ClientTls, metadata: tuple[tuple[str, str], ...] = ()) -> list[grpc.StatusCode]:
    """How GpuInfo and Shutdown end for a caller with this certificate."""
    async with channel(address, secured) as opened:
        api = guest_api_pb2_grpc.ProxiedGuestApiStub(opened)
        request = guest_api_pb2.Id(id="vm1")
        return [
            await code_of(api.GpuInfo(request, timeout=10, metadata=metadata)),
            await code_of(api.Shutdown(request, timeout=10, metadata=metadata)),
        ]


def listening(proxy: processes.ProxyProcess) -> TcpAddress:
    said = next(line for line in proxy.lines if "listening on " in line)
    address = parse_address(said.split("listening on ")[1].strip())
    assert isinstance(address, TcpAddress)
    return address


async def reloaded(proxy: processes.ProxyProcess) -> str:
    """Send SIGHUP; what the proxy says of it."""
    proxy.process.send_signal(signal.SIGHUP)
    assert proxy.process.stderr is not None
    said = ""
    while line := (await asyncio.wait_for(proxy.process.stderr.readline(), 10)).decode():
        said += line
        if "reload" in line:
            return said
    raise AssertionError("it ended")


async def test_a_certificate_has_the_roles_of_its_names_and_other_tls_clients_have_none(sockets: Path) -> None:
    ours, theirs = trustme.CA(), trustme.CA()
    authorities = write_authority(sockets, "ca", ours)
    write(sockets, "server", ours, "127.0.0.1")

    def client(name: str, authority: trustme.CA, *names: str) -> ClientTls:
        return ClientTls(authorities, *write(sockets, name, authority, *names))

    async with raw_guest(str(sockets / "g"), no_gpu) as guest:
        path = config(sockets, guest.address, tls=tls(sockets, mutual=True), access=GRANTS)
        async with processes.serving("--config", str(path)) as proxy:
            address = listening(proxy)
            assert await codes(address, client("a", ours, "ops.example")) == [OK, OK]
            assert await codes(address, client("b", ours, "other.example", "ops.example")) == [OK, OK]
            assert await codes(address, client("c", ours, "ops@ops.example")) == [DENIED, DENIED]
            assert await codes(address, client("d", ours, "x.ops.example")) == [DENIED, DENIED]
            refused = [grpc.StatusCode.UNAVAILABLE] * 2
            assert await codes(address, client("e", theirs, "ops.example")) == refused
            assert await codes(address, ClientTls(authorities)) == refused
            async with grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as plain:
                api = guest_api_pb2_grpc.ProxiedGuestApiStub(plain)
                assert await code_of(api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=10)) is grpc.StatusCode.UNAVAILABLE


async def test_on_a_listener_for_others_only_a_token_helps_also_from_this_machine(sockets: Path) -> None:
    ours = trustme.CA()
    authorities = write_authority(sockets, "ca", ours)
    write(sockets, "server", ours, "127.0.0.1")
    async with raw_guest(str(sockets / "g"), no_gpu) as guest:
        path = config(sockets, guest.address, tls=tls(sockets, mutual=False), access=tokens(sockets, "grafana"))
        async with processes.serving("--config", str(path)) as proxy:
            address, secured = listening(proxy), ClientTls(authorities)
            assert await codes(address, secured) == [NO_CREDENTIALS] * 2
            assert await codes(address, secured, bearer("grafana")) == [OK, DENIED]
            assert await codes(address, secured, bearer("other")) == [NO_CREDENTIALS] * 2
            path.write_text(path.read_text().replace(tls(sockets, mutual=False), ""))
            assert "needs a restart" in await reloaded(proxy)
            assert await codes(address, secured) == [NO_CREDENTIALS] * 2, "the listener is still the one for others"
            status, _, err = await proxy.stop()
            assert status == 0
            assert secret("grafana") not in err


async def test_tokens_are_revoked_and_certificates_renewed_without_dropping_a_call(sockets: Path) -> None:
    before, after = trustme.CA(), trustme.CA()
    old_authority, new_authority = write_authority(sockets, "old", before), write_authority(sockets, "new", after)
    write(sockets, "server", before, "127.0.0.1")
    both_asked, go_on = asyncio.Event(), asyncio.Event()

    async def wait(stream: Stream) -> None:
        if len(guest.requests) == 2:
            both_asked.set()
        await go_on.wait()
        await stream.answer(b"")

    async with raw_guest(str(sockets / "g"), wait) as guest:
        access = tokens(sockets, "old", "both")
        path = config(sockets, guest.address, tls=tls(sockets, mutual=False), access=access)
        async with (
            processes.serving("--config", str(path)) as proxy,
            channel(listening(proxy), ClientTls(old_authority)) as opened,
        ):
            api = guest_api_pb2_grpc.ProxiedGuestApiStub(opened)
            request = guest_api_pb2.Id(id="vm1")
            # A bound of its own, so that the watch below asks the guest itself.
            bound = ("cache-control", "max-age=60")
            in_flight = asyncio.ensure_future(api.GpuInfo(request, timeout=30, metadata=(*bearer("both"), bound)))
            revoked = asyncio.ensure_future(api.GpuInfo(request, timeout=30, metadata=(*bearer("old"), bound)))
            watch = fleet_pb2_grpc.FleetServiceStub(opened).WatchGpuInfo(
                fleet_pb2.WatchGpuInfoRequest(), timeout=30, metadata=bearer("old")
            )
            reading = asyncio.ensure_future(watch.read())
            await asyncio.wait_for(both_asked.wait(), 10)
            tokens(sockets, "both", "new")
            write(sockets, "server", after, "127.0.0.1")
            assert "configuration reloaded" in await reloaded(proxy)
            assert await code_of(api.GpuInfo(request, timeout=10, metadata=bearer("old"))) is NO_CREDENTIALS
            assert await code_of(revoked) is NO_CREDENTIALS, "it waits for the guest no longer"
            assert await code_of(reading) is NO_CREDENTIALS
            go_on.set()
            assert await in_flight == guest_api_pb2.GpuInfoResponse()
            for name in ("both", "new"):
                assert await code_of(api.GpuInfo(request, timeout=10, metadata=bearer(name))) is OK
            assert (await codes(listening(proxy), ClientTls(new_authority), bearer("new")))[0] is OK


async def test_a_reload_that_is_refused_changes_nothing_and_says_why(sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), no_gpu) as guest:
        path = config(sockets, guest.address, access=tokens(sockets, "a"), listen=f"unix:{sockets}/proxy")
        async with (
            processes.serving("--config", str(path)) as proxy,
            grpc.aio.insecure_channel(f"unix:{sockets}/proxy", options=[("grpc.default_authority", "localhost")]) as opened,
        ):
            api = guest_api_pb2_grpc.ProxiedGuestApiStub(opened)
            (sockets / "tokens.toml").write_text("[[token]]\nname = 'a'\n")
            said = await reloaded(proxy)
            assert "reload refused" in said
            assert f"{path}: access.token_file: {sockets}/tokens.toml: token[0].hash: missing" in said
            assert await code_of(api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=10, metadata=bearer("a"))) is OK
            tokens(sockets, "b")
            path.write_text(path.read_text().replace("vm1", "vm2"))
            assert "needs a restart" in await reloaded(proxy)
            assert await code_of(api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=10, metadata=bearer("b"))) is OK


async def test_the_service_manager_hears_of_start_reload_and_stop(sockets: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as ear:
        ear.bind(str(sockets / "notify"))
        loop = asyncio.get_running_loop()

        async def heard() -> dict[str, str]:
            message = await asyncio.wait_for(loop.sock_recv(ear, 4096), 20)
            return dict(line.split("=", 1) for line in message.decode().splitlines())

        address = f"unix:{sockets}/proxy"
        env = {"NOTIFY_SOCKET": str(sockets / "notify"), "WATCHDOG_USEC": "60000000"}
        async with processes.serving("--grpc", address, env=env) as proxy:
            told = [await heard(), await heard()]
            assert {"READY": "1", "STATUS": f"listening on {address}"} in told
            assert {"WATCHDOG": "1"} in told
            proxy.process.send_signal(signal.SIGHUP)
            assert (await heard())["RELOADING"] == "1"
            assert await heard() == {"READY": "1"}
            proxy.process.send_signal(signal.SIGTERM)
            assert await heard() == {"STOPPING": "1"}
            assert (await proxy.end())[0] == 0


async def test_check_config_looks_into_the_token_file(sockets: Path) -> None:
    tokens(sockets, "a")
    path = config(
        sockets, "vsock:3:1", access=f"[access]\ntoken_file = '{sockets}/tokens.toml'\n", listen=f"unix:{sockets}/proxy"
    )
    (sockets / "tokens.toml").chmod(0o666)
    status, out, err = await processes.run("check-config", "--config", str(path))
    assert (status, out) == (2, "")
    assert err == f"{path}: access.token_file: {sockets}/tokens.toml: others may write to it; chmod go-w it\n"
