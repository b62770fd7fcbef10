"""Who calls: what the kernel says about a Unix client or a vsock peer reaches the servicer, and nobody can claim to be another."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from guest_transport.addresses import VSOCK_PORT_ANY, Address, TcpAddress, UnixAddress, VsockAddress
from guest_transport.errors import ListenError
from guest_transport.options import channel_options
from guest_transport.peers import Peer, Peers, TcpPeer, UnixPeer, VsockPeer, unix_peer
from guest_transport.relay.dial import dial_target, relayed_target
from guest_transport.relay.listeners import RelayedListeners
from guest_transport.server.grpc_server import GrpcServer, Service
from guest_transport.sockets import unix, vsock
from tests.other_users import as_user, python_of_anybody


def _who(peers: Peers, seen: list[Peer]) -> Service:
    """A service whose one method, /test.Who/Am, notes who calls."""

    async def am(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        seen.append(peers.of(context))
        return request

    def add(server: grpc.aio.Server) -> None:
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(am)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Who", {"Am": method}),))

    return Service("test.Who", add)


@contextlib.asynccontextmanager
async def _server(*listen: Address, identify_unix: bool = False) -> AsyncIterator[tuple[GrpcServer, list[Peer]]]:
    peers, seen = Peers(), list[Peer]()
    server = GrpcServer([_who(peers, seen)], peers=peers, identify_unix=identify_unix)
    await server.start(listen)
    try:
        yield server, seen
    finally:
        await server.stop()


async def _call(target: str) -> None:
    options = channel_options(UnixAddress("/any"))
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        am: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test.Who/Am")
        await am(b"", timeout=10, wait_for_ready=True)


async def test_a_unix_client_is_known_by_pid_uid_and_gid(tmp_path: Path) -> None:
    address = UnixAddress(f"{tmp_path}/s")
    async with _server(address, identify_unix=True) as (_, seen):
        assert os.stat(address.path).st_mode & 0o777 == 0o660
        await _call(address.grpc_target)
    [peer] = seen
    assert isinstance(peer, UnixPeer)
    assert (peer.pid, peer.uid, peer.gid) == (os.getpid(), os.getuid(), os.getgid())
    assert set(peer.groups) == set(os.getgroups())
    assert str(peer) == f"unix uid {os.getuid()} gid {os.getgid()} pid {os.getpid()}"
    assert list(tmp_path.iterdir()) == []


async def test_a_unix_client_of_a_server_that_does_not_look_is_a_unix_client_and_no_more(tmp_path: Path) -> None:
    address = UnixAddress(f"{tmp_path}/s")
    async with _server(address) as (_, seen):
        await _call(address.grpc_target)
    assert seen == [UnixPeer()]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_tcp_client_is_known_by_its_address(host: str) -> None:
    async with _server(TcpAddress(host, 0)) as (server, seen):
        [address] = server.addresses
        assert isinstance(address, TcpAddress)
        await _call(address.grpc_target)
    [peer] = seen
    assert isinstance(peer, TcpPeer)
    assert peer.host == host
    assert peer.loopback


async def test_a_client_that_takes_the_name_of_another_peer_is_known_as_itself(tmp_path: Path) -> None:
    address = UnixAddress(f"{tmp_path}/s")
    async with _server(address, identify_unix=True) as (server, seen):
        with server.peers.naming(VsockPeer(2, 1)) as name:
            # The dialer's relay connects to the server from a socket of that name.
            async with relayed_target(address, lambda: unix.connect(address.path, name)) as target:
                await _call(target.grpc_target)
    [peer] = seen
    assert isinstance(peer, UnixPeer)
    assert peer.uid == os.getuid()


async def test_a_name_means_nothing_to_a_server_that_names_nobody(tmp_path: Path) -> None:
    address = UnixAddress(f"{tmp_path}/s")
    other = "\0guestscope-peer-0123456789abcdef0123456789abcdef"
    async with (
        _server(address) as (_, seen),
        relayed_target(address, lambda: unix.connect(address.path, other)) as target,
    ):
        await _call(target.grpc_target)
    assert seen == [UnixPeer()]


@pytest.fixture
def public_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gs-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv: starts a process as another user"
)
def test_another_user_is_known_as_that_user_with_its_groups(public_folder: Path) -> None:
    path = public_folder / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen()
        listener.settimeout(20)
        program = f"import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r}); sys.stdin.read()"
        python = python_of_anybody()
        with subprocess.Popen(
            [*as_user(65534, 65533, (65532, 65531)), python, "-I", "-c", program], stdin=subprocess.PIPE, cwd="/"
        ) as client:
            accepted, _ = listener.accept()
            with accepted:
                peer = unix_peer(accepted)
            assert client.stdin is not None
            client.stdin.close()
        assert client.returncode == 0
    assert (peer.pid, peer.uid, peer.gid) == (client.pid, 65534, 65533)
    assert set(peer.groups) >= {65532, 65531}


class _VsockLike(socket.socket):
    """A Unix socket whose accepted connections come from a vsock address, as the relay sees one."""

    cid = 2

    def accept(self) -> tuple[socket.socket, object]:
        connection, _ = super().accept()
        return connection, (self.cid, 1024)


def _vsock_like(path: Path, cid: int) -> _VsockLike:
    listener = _VsockLike(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listener.cid = cid
    listener.bind(str(path))
    listener.listen()
    return listener


@contextlib.asynccontextmanager
async def _vsock_server(folder: Path, cid: int, allowed: tuple[int, ...]) -> AsyncIterator[tuple[str, list[Peer]]]:
    peers, seen = Peers(), list[Peer]()
    server = grpc.aio.server()
    _who(peers, seen).add_to(server)
    relayed = RelayedListeners(peers, allowed)
    server.add_insecure_port(relayed.grpc_target)
    relayed.add_vsock(VsockAddress(0xFFFFFFFF, 8000), _vsock_like(folder / "v", cid))
    await server.start()
    relayed.start()
    try:
        yield f"unix:{folder}/v", seen
    finally:
        await server.stop(None)
        await relayed.close()


async def test_the_host_reaches_the_guest_and_is_known_by_its_cid(tmp_path: Path) -> None:
    async with _vsock_server(tmp_path, 2, (2,)) as (target, seen):
        await _call(target)
    assert seen == [VsockPeer(2, 1024)]
    assert str(seen[0]) == "vsock CID 2"


async def test_a_cid_that_is_not_allowed_is_cut_off_before_a_byte_reaches_grpc(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with _vsock_server(tmp_path, 7, (2, 3)) as (_, seen):
        with await unix.connect(f"{tmp_path}/v") as client:
            loop = asyncio.get_running_loop()
            assert await asyncio.wait_for(loop.sock_recv(client, 1), 10) == b""
    assert seen == []
    assert "vsock:any:8000: refused a connection from CID 7 (allowed: 2, 3)" in caplog.text


async def test_a_peer_without_a_cid_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    peers = Peers()
    relayed = RelayedListeners(peers, (2,))
    relayed.add_vsock(VsockAddress(0xFFFFFFFF, 8000), unix.listen(f"{tmp_path}/v"))
    relayed.start()
    with await unix.connect(f"{tmp_path}/v") as client:
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1), 10) == b""
    await relayed.close()
    assert "without a CID" in caplog.text


def _no_vsock() -> str | None:
    try:
        socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    except OSError as error:
        return f"this kernel has no AF_VSOCK: {error.strerror}"
    return None


def _no_vsock_loopback() -> str | None:
    if reason := _no_vsock():
        return reason
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((1, 0xFFFFFFFF))
        except OSError as error:
            return f"this kernel has no vsock loopback (module vsock_loopback): {error.strerror}"
    return None


@pytest.mark.skipif(_no_vsock() is not None, reason=str(_no_vsock()))
async def test_a_cid_that_is_not_this_machines_is_a_clear_start_up_error() -> None:
    # No machine has this CID, so nothing is ever listened on.
    with pytest.raises(
        ListenError, match=r"^vsock:4294967290:8000: cannot listen: the CID is not this machine's .*vsock:any:8000"
    ):
        await GrpcServer([]).start([VsockAddress(0xFFFFFFFA, 8000)])


@pytest.mark.skipif(_no_vsock() is not None, reason=str(_no_vsock()))
async def test_a_cid_that_no_vm_has_is_said_to_be_one() -> None:
    # Which of the three, is the kernel's choice; callers of the proxy read it, and the CID is the host's affair.
    with pytest.raises(OSError, match=r": (no VM with this CID|nobody in the VM listens)") as refused:
        await asyncio.wait_for(vsock.connect(VsockAddress(0xFFFFFFFA, 8000)), 10)
    assert refused.value.errno in {errno.ENODEV, errno.ECONNRESET, errno.ETIMEDOUT}
    assert "4294967290" not in str(refused.value)


def test_without_vsock_the_start_up_error_says_so_or_names_the_reason() -> None:
    if _no_vsock() is None:
        pytest.skip("this kernel has AF_VSOCK; the error without it cannot be seen")
    with pytest.raises(ListenError, match="this kernel has no vsock"):
        vsock.listen(VsockAddress(0xFFFFFFFF, 8000))


@pytest.mark.skipif(_no_vsock_loopback() is not None, reason=str(_no_vsock_loopback()))
async def test_vsock_loopback_carries_a_call_from_dialer_to_listener() -> None:
    peers, seen = Peers(), list[Peer]()
    server = GrpcServer([_who(peers, seen)], peers=peers, vsock_cids=(1,))
    await server.start([VsockAddress(1, VSOCK_PORT_ANY)])
    async with dial_target(server.addresses[0]) as target:
        await _call(target.grpc_target)
    await server.stop()
    assert [type(peer) for peer in seen] == [VsockPeer]
