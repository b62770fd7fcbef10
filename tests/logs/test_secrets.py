"""No secret reaches a log: credentials through every door that refuses, and what both servers wrote about it."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest
import trustme
from google.protobuf import empty_pb2

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options
from tests.eventually import eventually
from tests.logs.servers import Server, again, ask_http, page, serving
from tests.policy.certificates import write, write_authority
from tests.policy.test_tls import tls, tokens
from tests.proxy import processes
from vmm_proxy.policy.tokens import token_hash

# Each credential below holds it, whatever else it is made of.
MARK = "dontshowthis"
TOKEN = f"{MARK}-" * 4
LATER = f"later-{TOKEN}"
SHORT = f"{MARK}0"


Metadata = tuple[tuple[str, str | bytes], ...]


def authorizations() -> list[Metadata]:
    """Metadata with credentials, good and bad."""
    key = "authorization"
    return [
        ((key, f"Bearer {TOKEN}"),),
        ((key, f"Bearer {TOKEN}unknown"),),
        ((key, f"Basic {TOKEN}"),),
        ((key, SHORT),),
        ((key, f"Bearer {TOKEN}"), (key, f"Bearer {LATER}")),
        ((key, f"bearer  {TOKEN} and more"),),
        ((f"{key}-bin", TOKEN.encode()),),
        (("cookie", TOKEN), ("x-api-key", TOKEN), ("cache-control", f"max-age={TOKEN}")),
        (("grpc-timeout-x", TOKEN), ("traceparent", TOKEN)),
    ]


HEADERS = (f"Authorization: Bearer {TOKEN}", f"Cookie: session={TOKEN}")
REQUESTS = [
    *(page(path, *HEADERS) for path in ("/", "/metrics", "/logs/web", "/nowhere", "/healthz")),
    page(f"/metrics?token={TOKEN}"),
    page(f"/{TOKEN}"),
    page(f"/metrics?vm_id={TOKEN}"),
    f"GET / HTTP/1.1\r\nAuthorization {TOKEN}\r\n\r\n".encode(),
    f"{TOKEN}\r\n\r\n".encode(),
    f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(TOKEN)}\r\nConnection: close\r\n\r\n{TOKEN}".encode(),
]


def assert_silent(text: str, key: bytes = b"") -> None:
    """`text` is a log with something in it, and holds nothing of a credential."""
    assert text
    assert MARK not in text
    secret_lines = [line for line in key.decode().splitlines() if line and not line.startswith("-----")]
    assert not [line for line in secret_lines if line in text]
    assert token_hash(TOKEN).removeprefix("sha256:") not in text


async def greet_with(address: str, data: bytes, *, secured: ssl.SSLContext | None = None) -> None:
    """Say `data` to a TCP listener; a handshake that fails is an end like any other."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=secured)
    writer.write(data)
    await asyncio.wait({asyncio.ensure_future(reader.read(100))}, timeout=1)
    writer.close()


async def raw_call(channel: grpc.aio.Channel, metadata: Metadata) -> None:
    """Call a method that nobody serves, named like a credential."""
    await channel.unary_unary(f"/{TOKEN}/Call", request_serializer=bytes, response_deserializer=bytes)(
        b"", timeout=20, metadata=metadata
    )


def token_file(folder: Path, text: str) -> None:
    """Put a token file in place as an editor does."""
    fresh = folder / "tokens.new"
    fresh.write_text(text)
    fresh.replace(folder / "tokens.toml")


async def reloaded(server: Server, expected: str) -> None:
    before = sum(expected in line for line in server.lines)
    server.process.send_signal(signal.SIGHUP)
    await eventually(lambda: sum(expected in line for line in server.lines) != before)


async def test_credentials_that_the_proxy_takes_or_refuses_are_not_in_its_log(sockets: Path) -> None:
    folder, authority = sockets, trustme.CA()
    _, key = write(folder, "server", authority, "localhost")
    write_authority(folder, "ca", authority)
    config = folder / "proxy.toml"
    config.write_text(
        f"[grpc]\nlisten = ['unix:{folder}/p', '127.0.0.1:0']\n[http]\nlisten = 'unix:{folder}/http'\nneed_token = true\n"
        + tls(folder, mutual=True)
        + tokens(folder, "viewer")
        + f"[[guest]]\nid = 'vm1'\naddress = 'unix:{folder}/nobody'\n"
    )
    good = f"[[token]]\nname = 'a'\nhash = '{token_hash(TOKEN)}'\nrole = 'viewer'\n"
    token_file(folder, good)
    address = UnixAddress(f"{folder}/p")
    trusting = ssl.create_default_context(cafile=str(folder / "ca"))
    trusting.check_hostname = False
    async with (
        serving("vmm_proxy", "--config", str(config), "--log-format", "json", ready="guests known") as proxy,
        grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel,
    ):
        tcp = (await proxy.line_with("listening on 127.0.0.1")).rpartition(" ")[2].rstrip('"}')
        api, directory = guest_api_pb2_grpc.ProxiedGuestApiStub(channel), fleet_pb2_grpc.DirectoryServiceStub(channel)
        fleet = fleet_pb2_grpc.FleetServiceStub(channel)
        guest = fleet_pb2.RegisterGuestRequest(guest=fleet_pb2.GuestEntry(id="vm2", address="vsock:9:1"))

        def calls(metadata: Metadata) -> list[Callable[[], Awaitable[object]]]:
            return [
                lambda: api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=20, metadata=metadata),
                lambda: api.Shutdown(guest_api_pb2.Id(id="vm1"), timeout=20, metadata=metadata),
                lambda: directory.RegisterGuest(guest, timeout=20, metadata=metadata),
                lambda: fleet.ListGuests(fleet_pb2.ListGuestsRequest(), timeout=20, metadata=metadata),
                lambda: raw_call(channel, metadata),
            ]

        await again(2, *(call for metadata in authorizations() for call in calls(metadata)))
        await again(2, *((lambda request=request: ask_http(folder / "http", request)) for request in REQUESTS))
        await again(1, lambda: greet_with(tcp, TOKEN.encode()), lambda: greet_with(tcp, TOKEN.encode(), secured=trusting))
        for wrong in (good.replace("sha256:", TOKEN), f"{good}token = '{TOKEN}'\n", f"{good}[[token]]\nname = '{TOKEN}\n", TOKEN):
            token_file(folder, wrong)
            await reloaded(proxy, "reload refused")
        token_file(folder, good)
        # A key that does not fit is read at the next connection.
        (folder / "server.key").write_text(f"-----BEGIN PRIVATE KEY-----\n{TOKEN}\n-----END PRIVATE KEY-----\n")
        secret = key.read_bytes()
        await again(1, lambda: greet_with(tcp, b"", secured=trusting))
        await reloaded(proxy, "reload refused")
        await proxy.stop()
    text = "\n".join(proxy.lines)
    for refused in ("the token is not known", "must be one bearer token", "reload refused", "Shutdown"):
        assert refused in text
    assert_silent(text, secret)


async def test_credentials_that_callers_show_the_agent_are_not_in_its_log(sockets: Path) -> None:
    folder, nothing = sockets, empty_pb2.Empty()
    config = folder / "guest.toml"
    config.write_text(
        f"[http]\nlisten = 'unix:{folder}/http'\npublic_sysinfo = true\npublic_logs = true\n[log]\nlevel = 'debug'\n"
        f"[grpc]\nlisten = ['unix:{folder}/g', '127.0.0.1:0']\n[containers]\nsocket = '{folder}/no-engine'\n[gpu]\nsimulate = 'none'\n"
    )
    async with serving("guest_service", "--config", str(config), ready="listening for HTTP") as agent:
        target = (await agent.line_with("listening on 127.0.0.1")).rpartition(" ")[2]
        async with grpc.aio.insecure_channel(target) as channel:
            api = guest_api_pb2_grpc.GuestApiStub(channel)
            methods: tuple[Callable[..., Awaitable[object]], ...] = (api.Shutdown, api.GpuInfo, api.Info, api.ListContainers)

            def calls(metadata: Metadata) -> list[Callable[[], Awaitable[object]]]:
                known = [(lambda method=method: method(nothing, timeout=20, metadata=metadata)) for method in methods]
                return [*known, lambda: raw_call(channel, metadata)]

            await again(2, *(call for metadata in authorizations() for call in calls(metadata)))
        await again(2, *((lambda request=request: ask_http(folder / "http", request)) for request in REQUESTS))
        await again(1, lambda: greet_with(target, TOKEN.encode()))
        await agent.stop()
    text = "\n".join(agent.lines)
    assert "Shutdown by 127.0.0.1" in text
    assert_silent(text)


@pytest.mark.parametrize(
    "tokens_text",
    [
        f"[[token]]\nname = 'a'\nhash = '{TOKEN}'\nrole = 'viewer'\n",
        f"[[token]]\nname = 'a'\ntoken = '{TOKEN}'\nrole = 'viewer'\n",
        f"[[token]]\nname = 'a'\nhash = '{token_hash(TOKEN)}'\nrole = '{TOKEN}'\n",
        f"{TOKEN}\n",
        f'hash = "{TOKEN}\n',
    ],
)
async def test_a_token_file_that_is_refused_is_not_quoted(sockets: Path, tokens_text: str) -> None:
    config = sockets / "proxy.toml"
    config.write_text(f"[grpc]\nlisten = ['unix:{sockets}/p']\n[access]\ntoken_file = '{sockets}/tokens.toml'\n")
    (sockets / "tokens.toml").write_text(tokens_text)
    status, out, err = await processes.run("serve", "--config", str(config), "--http", "off")
    assert status == 2
    assert "tokens.toml" in err
    assert_silent(out + err)


async def test_a_token_that_is_too_short_is_not_quoted() -> None:
    process = await processes.start("hash-token")
    assert process.process.stdin is None
    status, out, err = await process.end()
    assert status == 2
    assert_silent(out + err)
