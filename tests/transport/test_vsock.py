"""AF_VSOCK where no VM runs: what cannot be bound or dialled says what to do. What can is the virtual machines' (make vm-test)."""

from __future__ import annotations

import socket

import pytest

from guest_transport.addresses import VSOCK_CID_ANY, VSOCK_PORT_ANY, VsockAddress
from guest_transport.errors import ListenError
from guest_transport.sockets import vsock


def _has_vsock() -> bool:
    try:
        socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


needs_vsock = pytest.mark.skipif(not _has_vsock(), reason="missing: AF_VSOCK in this kernel (module vsock)")
# No machine has it: QEMU and libvirt give small numbers, and the kernel the rest only when asked for it.
NOT_OURS = 0x7F00_1234


@needs_vsock
def test_a_cid_that_is_another_machines_is_refused_with_what_to_use() -> None:
    with pytest.raises(ListenError, match=r"the CID is not this machine's \(this machine.*\); use vsock:any:8000"):
        vsock.listen(VsockAddress(NOT_OURS, 8000))


@needs_vsock
def test_a_port_that_is_taken_is_named() -> None:
    with vsock.listen(VsockAddress(VSOCK_CID_ANY, VSOCK_PORT_ANY)) as first:
        port = first.getsockname()[1]
        with pytest.raises(ListenError, match=f"port {port} is taken"):
            vsock.listen(VsockAddress(VSOCK_CID_ANY, port))


@needs_vsock
async def test_a_dial_that_fails_says_why_without_the_cid() -> None:
    with pytest.raises(OSError, match=r"\w") as failed:
        await vsock.connect(VsockAddress(NOT_OURS, 9999))
    assert failed.value.errno
    assert str(NOT_OURS) not in str(failed.value)


def test_this_machines_cid_is_unknown_or_one_machines() -> None:
    cid = vsock.own_cid()
    assert cid is None or 0 < cid < VSOCK_CID_ANY


@pytest.mark.skipif(_has_vsock(), reason="this kernel has AF_VSOCK; the error without it cannot be seen")
def test_a_kernel_without_vsock_is_named() -> None:
    with pytest.raises(ListenError, match="this kernel has no vsock"):
        vsock.listen(VsockAddress(VSOCK_CID_ANY, 8000))
