"""TLS and tokens on real sockets: who is believed, what is shown to whom, and what never travels in the clear."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from guest_client import errors
from guest_client.credentials import TOKEN_LIMIT_BYTES, read_token
from guest_client.guestctl.cli import run
from guest_client.sync_client import GuestClient, ProxyClient
from guest_transport.tls import ClientTls
from tests.client.conftest import Ask
from tests.client.fake_proxy import Fleet, serve

COMMAND = [sys.executable, "-m", "guest_client.guestctl"]
TOKEN = "t" * 32


@dataclass(frozen=True)
class Files:
    """An authority, and what it issued."""

    authority: Path
    certificate: Path
    key: Path


def _issue(folder: Path, authority: trustme.CA, name: str) -> Files:
    folder.mkdir(exist_ok=True)
    files = Files(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    issued = authority.issue_cert(name)
    authority.cert_pem.write_to_path(str(files.authority))
    files.certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(files.key))
    return files


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GUESTCTL_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Files:
    """A client's files."""
    return _issue(tmp_path_factory.mktemp("client"), authority, "operator.example")


@contextlib.contextmanager
def _serving(fleet: Fleet, files: Files, *, mutual: bool = False) -> Iterator[str]:
    pairs = [(files.key.read_bytes(), files.certificate.read_bytes())]
    credentials = grpc.ssl_server_credentials(pairs, files.authority.read_bytes(), mutual)
    server, pool, port = serve(fleet, "127.0.0.1:0", credentials)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
        pool.shutdown()


@pytest.fixture
def tls_address(fleet: Fleet, tmp_path: Path, authority: trustme.CA) -> Iterator[str]:
    with _serving(fleet, _issue(tmp_path / "server", authority, "127.0.0.1")) as address:
        yield address


@pytest.fixture
def plain_address(fleet: Fleet) -> Iterator[str]:
    server, pool, port = serve(fleet, "127.0.0.1:0")
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()
    pool.shutdown()


async def test_a_server_of_a_believed_authority_is_asked_over_tls(ask: Ask, tls_address: str, mine: Files) -> None:
    tls = ClientTls(mine.authority)
    assert (await ask(tls_address, lambda client: client.info("vm1"), tls=tls)).version == "agent of vm1"
    assert len(await ask(tls_address, lambda client: client.list_guests(), tls=tls)) == 2
    assert len(await ask(tls_address, lambda client: client.collect_gpu_info(), tls=tls)) == 2


async def test_a_client_shows_its_certificate_where_one_is_demanded(
    ask: Ask, fleet: Fleet, tmp_path: Path, authority: trustme.CA, mine: Files
) -> None:
    with _serving(fleet, _issue(tmp_path / "server", authority, "127.0.0.1"), mutual=True) as address:
        with_certificate = ClientTls(mine.authority, mine.certificate, mine.key)
        assert (await ask(address, lambda client: client.info("vm2"), tls=with_certificate)).version == "agent of vm2"
        with pytest.raises(errors.UnavailableError, match="Socket closed"):
            await ask(address, lambda client: client.info("vm2"), tls=ClientTls(mine.authority))


async def test_a_server_that_is_not_believed_gets_no_call_and_the_reason_is_named(
    ask: Ask, fleet: Fleet, tmp_path: Path, authority: trustme.CA, mine: Files
) -> None:
    tls = ClientTls(mine.authority)
    with _serving(fleet, _issue(tmp_path / "stranger", trustme.CA(), "127.0.0.1")) as address:
        with pytest.raises(errors.UnavailableError, match="TLS: the server's certificate is of no authority"):
            await ask(address, lambda client: client.info("vm1"), tls=tls, token=TOKEN)
        with pytest.raises(errors.UnavailableError, match="TLS: the server's certificate is of no authority"):
            await ask(address, lambda client: client.info("vm1"), tls=ClientTls())
    with (
        _serving(fleet, _issue(tmp_path / "other", authority, "elsewhere.example")) as address,
        pytest.raises(errors.UnavailableError, match="TLS: the server's certificate is for another name"),
    ):
        await ask(address, lambda client: client.info("vm1"), tls=tls, token=TOKEN)
    assert fleet.metadata == {}, "no call, and no token, has arrived"


async def test_a_plain_server_is_no_substitute_for_a_tls_one(ask: Ask, fleet: Fleet, plain_address: str, mine: Files) -> None:
    with pytest.raises(errors.UnavailableError, match="TLS: the server does not speak TLS"):
        await ask(plain_address, lambda client: client.info("vm1"), tls=ClientTls(mine.authority), token=TOKEN)
    assert fleet.metadata == {}


async def test_a_token_goes_with_every_kind_of_call(ask: Ask, fleet: Fleet, tls_address: str, address: str, mine: Files) -> None:
    questions = [
        lambda client: client.gpu_info("vm1", max_age_seconds=60),
        lambda client: client.list_guests(),
        lambda client: client.collect_gpu_info(max_age_seconds=60),
    ]
    for question in questions:
        for where, tls in ((tls_address, ClientTls(mine.authority)), (address, None)):
            fleet.metadata = {}
            await ask(where, question, tls=tls, token=TOKEN)
            assert fleet.metadata["authorization"] == f"Bearer {TOKEN}"
    assert fleet.metadata["cache-control"] == "max-age=60"


@pytest.mark.parametrize("kind", [GuestClient, ProxyClient])
def test_a_token_is_refused_where_the_network_could_read_it(kind: Any) -> None:
    for exposed in ("192.0.2.1:8000", "proxy.example:8000", "[2001:db8::1]:8000"):
        with pytest.raises(errors.CredentialsError, match="not sent without TLS") as caught:
            kind(exposed, token=TOKEN)
        assert TOKEN not in str(caught.value)
    for local in ("127.0.0.1:8000", "localhost:8000", "[::1]:8000", "unix:/run/x", "vsock:3:8000"):
        kind(local, token=TOKEN).close()
    kind("192.0.2.1:8000", token=TOKEN, tls=ClientTls()).close()


@pytest.mark.parametrize("token", ["", "two words", "a\r\nb", "ä" * 32, "x" * (TOKEN_LIMIT_BYTES + 1)])
def test_what_is_no_token_is_refused_and_not_repeated(token: str, tmp_path: Path) -> None:
    with pytest.raises(errors.CredentialsError, match="printable ASCII") as caught:
        ProxyClient("unix:/run/x", token=token)
    assert not token or token not in str(caught.value)
    file = tmp_path / "token"
    file.write_text(token)
    with pytest.raises(errors.CredentialsError, match=str(file)) as caught:
        read_token(file)
    assert not token or token not in str(caught.value)


def test_a_token_file_holds_the_token_and_perhaps_a_line_end(tmp_path: Path) -> None:
    for content in (TOKEN, f"{TOKEN}\n", f"{TOKEN}\r\n"):
        (tmp_path / "token").write_bytes(content.encode())
        assert read_token(tmp_path / "token") == TOKEN
    (tmp_path / "token").write_bytes(b"x" * TOKEN_LIMIT_BYTES)
    assert len(read_token(tmp_path / "token")) == TOKEN_LIMIT_BYTES
    with pytest.raises(errors.CredentialsError, match="No such file"):
        read_token(tmp_path / "none")


async def test_files_that_cannot_be_used_are_named_before_anything_is_sent(ask: Ask, tmp_path: Path, mine: Files) -> None:
    where = "127.0.0.1:9"
    cases = [
        (ClientTls(tmp_path / "none"), "none: cannot be read"),
        (ClientTls(mine.key), "no PEM certificates"),
        (ClientTls(mine.authority, mine.certificate), "needs its key"),
        (ClientTls(mine.authority, mine.authority, mine.key), "no certificate that fits the key"),
    ]
    for tls, words in cases:
        with pytest.raises(errors.CredentialsError, match=words):
            await ask(where, lambda client: client.info("vm1"), tls=tls)
    for local in ("unix:/run/x", "vsock:3:8000", "hvsock:/run/x:8000"):
        with pytest.raises(errors.CredentialsError, match="TLS is for HOST:PORT only"):
            await ask(local, lambda client: client.info("vm1"), tls=ClientTls(mine.authority))


def _line(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    assert run(list(arguments)) == status
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def test_guestctl_takes_tls_and_token_from_its_options(
    capsys: pytest.CaptureFixture[str], fleet: Fleet, tmp_path: Path, authority: trustme.CA, mine: Files
) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    with _serving(fleet, _issue(tmp_path / "server", authority, "127.0.0.1"), mutual=True) as address:
        files = ["--ca", str(mine.authority), "--cert", str(mine.certificate), "--key", str(mine.key)]
        assert run(["--proxy", address, *files, "--token-file", str(token), "info", "vm1"]) == 0
        assert run(["info", "vm1", "--proxy", address, *files, "--token-file", str(token)]) == 0
        assert fleet.metadata["authorization"] == f"Bearer {TOKEN}"
        assert "agent of vm1" in capsys.readouterr().out
        refusal = _line(capsys, 4, "--proxy", address, *files[:2], "info", "vm1")
        assert "give --cert and --key" in refusal
        assert "give --ca or --tls" in _line(capsys, 4, "--proxy", address, "info", "vm1")
        assert "of no authority that is believed" in _line(capsys, 4, "--proxy", address, "--tls", "info", "vm1")


def test_guestctl_takes_tls_and_token_from_the_environment_for_a_proxy_and_for_nobody_else(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fleet: Fleet,
    address: str,
    plain_address: str,
    tls_address: str,
    tmp_path: Path,
    mine: Files,
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    monkeypatch.setenv("GUESTCTL_CA", str(mine.authority))
    monkeypatch.setenv("GUESTCTL_TOKEN_FILE", str(token))
    for where in (tls_address, address):
        fleet.metadata = {}
        assert run(["--proxy", where, "info", "vm1"]) == 0
        assert fleet.metadata["authorization"] == f"Bearer {TOKEN}"
    for guest in (plain_address, address):
        fleet.metadata = {}
        assert run(["--guest", guest, "info"]) == 0
        assert fleet.metadata
        assert "authorization" not in fleet.metadata
    assert run(["--guest", tls_address, "--ca", str(mine.authority), "info"]) == 0
    assert "authorization" not in fleet.metadata


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--proxy", "192.0.2.1:8000", "--token-file", "{token}", "list"], "not sent without TLS"),
        (["--proxy", "unix:/run/x", "--token-file", "/none", "list"], "/none: cannot be read"),
        (["--proxy", "127.0.0.1:9", "--ca", "/none", "list"], "/none: cannot be read"),
        (["--proxy", "127.0.0.1:9", "--cert", "/none", "gpu", "--all"], "needs its key"),
        (["--proxy", "unix:/run/x", "--ca", "/none", "top"], "TLS is for HOST:PORT only"),
        (["--proxy", "192.0.2.1:8000", "--token-file", "{token}", "watch"], "not sent without TLS"),
    ],
)
def test_what_cannot_be_shown_or_believed_is_misuse_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    refusal = _line(capsys, 2, *(argument.format(token=tmp_path / "token") for argument in arguments))
    assert words in refusal
    assert TOKEN not in refusal


def test_a_handshake_that_fails_is_one_line_of_ours_and_none_of_grpcs(tls_address: str) -> None:
    for access in (["--tls"], []):
        done = subprocess.run(
            [*COMMAND, "--proxy", tls_address, *access, "info", "vm1"], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (4, "")
        assert done.stderr.startswith("guestctl: Info of 'vm1' at ")
        assert done.stderr.count("\n") == 1
