"""Where the proxy is to be reached: its gRPC addresses and its pages.

Health is asked, because it is open to everybody: the doctor has no role of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from guest_fleet.v1 import fleet_pb2
from guest_transport.addresses import TcpAddress, UnixAddress
from guest_transport.doctor.findings import Finding, note, wrong
from guest_transport.doctor.listeners import ANSWER_SECONDS, Served, examine_listener
from guest_transport.doctor.pages import examine_pages
from guest_transport.doctor.tls_listener import examine_tls_listener
from guest_transport.errors import SettingsError
from vmm_proxy.doctor.machine import UNIT, Host
from vmm_proxy.pages.settings import page_setup

_FLEET = fleet_pb2.DESCRIPTOR.services_by_name["FleetService"].full_name


async def _who(channel: grpc.aio.Channel) -> str:
    request = health_pb2.HealthCheckRequest(service=_FLEET)
    answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=ANSWER_SECONDS)
    serving = isinstance(answer, health_pb2.HealthCheckResponse) and answer.status == health_pb2.HealthCheckResponse.SERVING
    return "a proxy answers, serving" if serving else "a proxy answers, and is stopping"


PROXY = Served("proxy", UNIT, _who)


async def examine_grpc(host: Host) -> Sequence[Finding]:
    """Each address of grpc.listen and grpc.read_only_listen."""
    found: list[Finding] = []
    asked = []
    for address in host.listen():
        match address:
            case SettingsError():
                found.append(wrong(str(address), "correct it; vmm-proxy check-config tries it again"))
            case TcpAddress() if host.config.tls is not None and address.port:
                asked.append(examine_tls_listener(address, Path(host.config.tls.certificate), PROXY))
            case TcpAddress() | UnixAddress():
                asked.append(examine_listener(address, PROXY))
            case _:
                found.append(note(f"{address}: not looked at: the proxy listens on unix:/path and HOST:PORT"))
    answers = await asyncio.gather(*asked)
    return [*(finding for each in answers for finding in each), *found]


async def examine_http(host: Host) -> Sequence[Finding]:
    """The pages."""
    try:
        setup = page_setup(
            host.config.http,
            host.config.metrics,
            flag=None,
            has_tokens=host.config.access.token_file is not None,
            where=host.where,
        )
    except SettingsError as error:
        return [wrong(str(error), "correct it; vmm-proxy check-config tries it again")]
    return await examine_pages(setup.listen, UNIT)
