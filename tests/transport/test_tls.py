"""TLS on real sockets: who gets in, and certificates that are renewed while calls are in flight."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import trustme

from guest_transport.addresses import TcpAddress
from guest_transport.errors import SettingsError
from guest_transport.options import channel_options
from guest_transport.server.grpc_server import GrpcServer, Service
from guest_transport.tls import FILE_LIMIT_BYTES, ClientTls, ServerTls, certificate_names


class _Desk:
    """A service whose one method, /test.Desk/Ask, answers the caller's certificate names; on "wait" when it is told to go on."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()

    async def ask(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        if request == b"wait":
            self.entered.set()
            await self.go_on.wait()
        return ",".join(certificate_names(context)).encode()

    def add_to(self, server: grpc.aio.Server) -> None:
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self.ask)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Desk", {"Ask": method}),))


def _write(folder: Path, name: str, authority: trustme.CA, *names: str) -> tuple[Path, Path]:
    issued = authority.issue_cert(*names)
    chain, key = folder / f"{name}.crt", folder / f"{name}.key"
    issued.private_key_pem.write_to_path(str(key))
    chain.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    return chain, key


@contextlib.asynccontextmanager
async def _server(tls: ServerTls) -> AsyncIterator[tuple[TcpAddress, _Desk]]:
    desk = _Desk()
    server = GrpcServer([Service("test.Desk", desk.add_to)], tls=tls)
    await server.start([TcpAddress("127.0.0.1", 0)])
    [address] = server.addresses
    assert isinstance(address, TcpAddress)
    try:
        yield address, desk
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def _channel(address: TcpAddress, tls: ClientTls) -> AsyncIterator[grpc.aio.Channel]:
    credentials = await asyncio.to_thread(tls.credentials)
    async with grpc.aio.secure_channel(address.grpc_target, credentials, options=channel_options(address)) as channel:
        yield channel


def _asking(channel: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary("/test.Desk/Ask")


async def _ask(address: TcpAddress, tls: ClientTls) -> bytes:
    async with _channel(address, tls) as channel:
        return await _asking(channel)(b"", timeout=10)


async def test_a_client_with_a_certificate_of_the_right_authority_gets_in_and_is_known_by_its_names(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    client = ClientTls(tmp_path / "ca", *_write(tmp_path, "client", authority, "operator.example", "ops@example.org"))
    server = ServerTls(*_write(tmp_path, "server", authority, "127.0.0.1"), tmp_path / "ca")
    async with _server(server) as (address, _):
        assert (await _ask(address, client)).decode().split(",") == ["dns:operator.example", "email:ops@example.org"]


async def test_a_client_without_a_certificate_or_of_another_authority_stays_out(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    server = ServerTls(*_write(tmp_path, "server", authority, "127.0.0.1"), tmp_path / "ca")
    stranger = ClientTls(tmp_path / "ca", *_write(tmp_path, "client", other, "operator.example"))
    async with _server(server) as (address, _):
        for tls in (ClientTls(tmp_path / "ca"), stranger):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await _ask(address, tls)
            assert failed.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_without_client_authorities_no_certificate_is_asked_for(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    async with _server(ServerTls(*_write(tmp_path, "server", authority, "127.0.0.1"))) as (address, _):
        assert await _ask(address, ClientTls(tmp_path / "ca")) == b""


async def test_a_renewed_certificate_is_used_at_the_next_connection_and_drops_no_call(tmp_path: Path) -> None:
    before, after = trustme.CA(), trustme.CA()
    before.cert_pem.write_to_path(str(tmp_path / "before"))
    after.cert_pem.write_to_path(str(tmp_path / "after"))
    server = ServerTls(*_write(tmp_path, "server", before, "127.0.0.1"))
    async with _server(server) as (address, desk), _channel(address, ClientTls(tmp_path / "before")) as old:
        call = _asking(old)(b"wait", timeout=30)
        await asyncio.wait_for(desk.entered.wait(), 10)
        _write(tmp_path, "server", after, "127.0.0.1")
        assert await _ask(address, ClientTls(tmp_path / "after")) == b""
        desk.go_on.set()
        assert await call == b""


async def test_a_half_renewed_certificate_is_not_used_until_it_is_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before, after = trustme.CA(), trustme.CA()
    before.cert_pem.write_to_path(str(tmp_path / "before"))
    after.cert_pem.write_to_path(str(tmp_path / "after"))
    chain, key = _write(tmp_path, "server", before, "127.0.0.1")
    new_chain, new_key = _write(tmp_path, "new", after, "127.0.0.1")
    async with _server(ServerTls(chain, key)) as (address, _):
        new_chain.replace(chain)
        for _ in range(2):
            assert await _ask(address, ClientTls(tmp_path / "before")) == b""
        assert caplog.text.count("keeping the certificate in use") == 1
        new_key.replace(key)
        assert await _ask(address, ClientTls(tmp_path / "after")) == b""


@pytest.mark.parametrize("fault", ["missing", "garbage", "other key", "authorities"])
def test_files_that_do_not_fit_are_refused_at_the_start_in_one_line(tmp_path: Path, fault: str) -> None:
    authority = trustme.CA()
    authorities = tmp_path / "ca"
    authority.cert_pem.write_to_path(str(authorities))
    chain, key = _write(tmp_path, "server", authority, "127.0.0.1")
    match fault:
        case "missing":
            key.unlink()
        case "garbage":
            chain.write_bytes(b"\0garbage")
        case "other key":
            _, other = _write(tmp_path, "other", authority, "127.0.0.1")
            other.replace(key)
        case "authorities":
            authorities.write_bytes(b"\xff")
    with pytest.raises(SettingsError) as refused:
        ServerTls(chain, key, authorities).credentials()
    assert str(refused.value).isprintable()
    assert str(tmp_path) in str(refused.value)


def test_a_client_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="needs its key"):
        ClientTls(certificate=tmp_path / "x").credentials()


def test_grpc_is_given_new_certificates_only_when_the_files_hold_others(tmp_path: Path) -> None:
    chain, key = _write(tmp_path, "server", trustme.CA(), "127.0.0.1")
    tls = ServerTls(chain, key)
    tls.credentials()
    assert tls.configuration_if_changed() is None
    chain.touch()
    assert tls.configuration_if_changed() is None, "the same certificate again is no change"
    _write(tmp_path, "server", trustme.CA(), "127.0.0.1")
    assert tls.configuration_if_changed() is not None
    assert tls.configuration_if_changed() is None


def test_files_that_vanish_or_do_not_fit_leave_the_certificate_in_use_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chain, key = _write(tmp_path, "server", trustme.CA(), "127.0.0.1")
    tls = ServerTls(chain, key)
    tls.credentials()
    chain.unlink()
    assert [tls.configuration_if_changed() for _ in range(3)] == [None] * 3
    assert caplog.text.count("keeping the certificate in use") == 1
    chain.write_bytes(b"x" * (FILE_LIMIT_BYTES + 1))
    assert tls.configuration_if_changed() is None
    assert f"{chain}: larger than" in caplog.text


def test_a_named_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    chain, key = _write(tmp_path, "server", trustme.CA(), "localhost")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for tls in (ServerTls(pipe, key), ServerTls(chain, pipe), ServerTls(chain, key, pipe)):
        with pytest.raises(SettingsError, match=r"pipe: is no regular file"):
            tls.credentials()
    with pytest.raises(SettingsError, match=r"pipe: is no regular file"):
        ClientTls(authorities=pipe).credentials()
