"""What tests of guests with dstack's own agent share: such a guest's answers, and replies byte by byte."""

from __future__ import annotations

from guest_api import guest_api_pb2
from tests.proxy.raw_http_guest import Behaviour, Request

OURS, OTHER = bytes(range(32)), b"0123456789"
CARDS = guest_api_pb2.GpuInfoResponse(
    gpus=[guest_api_pb2.GpuDevice(uuid="GPU-1", utilization_gpu=0, memory_used_bytes=5)], sample_age_ms=7
)
REPLIES = {
    "Info": guest_api_pb2.GuestInfo(version="0.5.4", instance_id=OURS).SerializeToString(),
    "SysInfo": guest_api_pb2.SystemInfo(os_name="dstack", num_cpus=4).SerializeToString(),
    "GpuInfo": CARDS.SerializeToString(),
    "NetworkInfo": guest_api_pb2.NetworkInformation(dns_servers=["10.0.2.3"]).SerializeToString(),
    "ListContainers": guest_api_pb2.ListContainersResponse().SerializeToString(),
    "Shutdown": b"",
}


def sends(*pieces: bytes, hang_up: bool = False) -> Behaviour:
    async def answer(request: Request) -> None:
        await request.send(*pieces)
        if hang_up:
            await request.hang_up()

    return answer


def chunked(body: bytes, size: int) -> bytes:
    pieces = (body[at : at + size] for at in range(0, len(body), size))
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def body_of(length: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length
