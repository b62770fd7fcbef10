"""In one virtual machine: guest agent, proxy and guestctl over AF_VSOCK, looped back (CID 1)."""

from __future__ import annotations

import asyncio
import errno
import socket

from guest_transport.addresses import VSOCK_CID_ANY, VsockAddress
from guest_transport.errors import ListenError
from guest_transport.sockets.vsock import listen, own_cid
from tests.vm.initrd import SCRATCH
from tests.vm.inside.scenario import Results, Server, gpus_by_guestctl, patient_guest, run_as_first_process

PROXY = f"unix:{SCRATCH}/proxy.sock"


async def scenario() -> Results:
    """Two guests on one machine: the first lets its own machine in, the second only the host, as is the default."""
    open_guest = patient_guest("open", listen="vsock:any:8000", cids=[1])
    closed_guest = Server("closed", ["guest_service", "serve", "--grpc", "vsock:any:8001", "--http", "off", "--simulate", "h200"])
    guests = {"vm": "vsock:local:8000", "closed": "vsock:local:8001"}
    flags = [f"--guest={name}={address}" for name, address in guests.items()]
    proxy = Server("proxy", ["vmm_proxy", "serve", "--http", "off", "--grpc", PROXY, *flags])
    await asyncio.gather(*(server.says("listening on") for server in (open_guest, closed_guest, proxy)))
    vm, closed = await asyncio.gather(*(asyncio.to_thread(gpus_by_guestctl, PROXY, name) for name in ("vm", "closed")))
    return {
        "own_cid": own_cid(),
        "peer": _peer_of_a_connection(),
        "vm": vm,
        "closed": closed,
        "foreign_cid": _refusal(VsockAddress(77, 8000)),
        "taken": _refusal(VsockAddress(VSOCK_CID_ANY, 8000)),
    }


def _refusal(address: VsockAddress) -> str:
    """Why nobody can listen there."""
    try:
        listen(address).close()
    except ListenError as error:
        return str(error)
    return ""


def _peer_of_a_connection() -> dict[str, object]:
    """What the kernel tells of a looped connection, and of a port where nobody listens."""
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as listener, socket.socket(socket.AF_VSOCK) as dialer:
        listener.bind((socket.VMADDR_CID_ANY, 7000))
        listener.listen()
        dialer.connect((1, 7000))
        accepted, (cid, _port) = listener.accept()
        accepted.close()
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as dialer:
        refused = dialer.connect_ex((1, 9999))
    return {"cid": cid, "closed_port": errno.errorcode[refused]}


if __name__ == "__main__":
    run_as_first_process(scenario)
