"""`[tls]` of the guest agent: a real agent, real handshakes."""

from __future__ import annotations

import stat
from pathlib import Path

import grpc
import pytest
import trustme
from google.protobuf import empty_pb2

from guest_api import guest_api_pb2_grpc
from guest_transport.tls import ClientTls
from tests.agent.agent import Agent, refused, running_agent
from tests.policy.certificates import write, write_authority

OK, UNREACHABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE


class Files:
    """The agent's files in one folder: guests' certificates and proxies' are of different authorities."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.of_guests, self.of_proxies = trustme.CA(), trustme.CA()
        self.guests_file = write_authority(folder, "guests.ca", self.of_guests)
        self.proxies_file = write_authority(folder, "proxies.ca", self.of_proxies)
        write(folder, "guest", self.of_guests, "127.0.0.1")

    def config(self, more: str = "", *, key: str = "guest.key") -> Path:
        path = self.folder / "guest.toml"
        path.write_text(
            f"[grpc]\nlisten = ['127.0.0.1:0']\n[http]\nlisten = 'off'\n[gpu]\nsimulate = 'h200'\n{more}\n[tls]\n"
            f"certificate = '{self.folder}/guest.crt'\nkey = '{self.folder}/{key}'\nclient_authorities = '{self.proxies_file}'\n"
        )
        return path

    def caller(self, authority: trustme.CA, *names: str) -> ClientTls:
        return ClientTls(self.guests_file, *write(self.folder, "caller", authority, *names))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def code_of(agent: Agent, tls: ClientTls | None, method: str = "GpuInfo") -> grpc.StatusCode:
    """How a call ends for a caller with these credentials; None speaks plain text."""
    target = agent.log_line("listening on").rpartition(" ")[2]
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    opened = grpc.insecure_channel(target, options) if tls is None else grpc.secure_channel(target, tls.credentials(), options)
    with opened as channel:
        call = getattr(guest_api_pb2_grpc.GuestApiStub(channel), method).future(empty_pb2.Empty(), timeout=20)
        code = call.code()
        assert isinstance(code, grpc.StatusCode)
        assert method != "GpuInfo" or code is not OK or len(call.result().gpus) == 1
    return code


def test_only_who_shows_a_certificate_of_the_proxies_authority_reaches_the_agent(files: Files) -> None:
    with running_agent("--config", str(files.config())) as agent:
        assert code_of(agent, files.caller(files.of_proxies, "proxy.example")) is OK
        assert code_of(agent, files.caller(files.of_guests, "other-guest.example")) is UNREACHABLE
        assert code_of(agent, ClientTls(files.guests_file)) is UNREACHABLE
        assert code_of(agent, None) is UNREACHABLE
        assert code_of(agent, files.caller(files.of_proxies, "proxy.example")) is OK


def test_a_handshake_that_fails_leaves_no_line_of_grpcs_in_the_log(files: Files) -> None:
    with running_agent("--config", str(files.config()), prefix=("env", "-u", "GRPC_VERBOSITY")) as agent:
        for caller in (None, ClientTls(files.guests_file), files.caller(files.of_guests, "other-guest.example")):
            assert code_of(agent, caller) is UNREACHABLE
        assert code_of(agent, files.caller(files.of_proxies, "proxy.example")) is OK
        agent.end()
        assert [line for line in agent.lines if "ssl_transport_security" in line or "andshake" in line] == []


def test_a_renewed_certificate_is_shown_to_the_next_connection_without_a_restart(files: Files) -> None:
    with running_agent("--config", str(files.config())) as agent:
        old = files.caller(files.of_proxies, "proxy.example")
        assert code_of(agent, old) is OK
        files.of_guests = trustme.CA()
        write(files.folder, "guest", files.of_guests, "127.0.0.1")
        assert code_of(agent, old) is UNREACHABLE, "the caller believes the authority of before only"
        files.guests_file = write_authority(files.folder, "new.ca", files.of_guests)
        assert code_of(agent, files.caller(files.of_proxies, "proxy.example")) is OK


def test_a_shutdown_over_tls_is_for_the_configuration_to_allow_and_is_logged_with_the_callers_names(files: Files) -> None:
    caller = files.caller(files.of_proxies, "proxy.example")
    with running_agent("--config", str(files.config())) as agent:
        assert code_of(agent, caller, "Shutdown") is grpc.StatusCode.PERMISSION_DENIED
        assert "(dns:proxy.example): refused" in agent.log_line("Shutdown by")
    off = files.folder / "off"
    command = files.folder / "switch"
    command.write_text(f"#!/bin/sh\n: > {off}.new && mv {off}.new {off}\n")
    command.chmod(stat.S_IRWXU)
    with running_agent(
        "--config", str(files.config(f"[power]\nallow_shutdown = true\nshutdown_command = ['{command}']"))
    ) as agent:
        assert code_of(agent, caller, "Shutdown") is OK
        assert "(dns:proxy.example): accepted" in agent.log_line("Shutdown by")
        agent.log_line("running ")


@pytest.mark.parametrize("door", ["check-config", "serve"])
def test_certificates_that_do_not_fit_or_are_not_there_refuse_the_start_in_one_line(files: Files, door: str) -> None:
    write(files.folder, "other", files.of_guests, "127.0.0.1")
    done = refused(door, "--config", str(files.config(key="other.key")))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"tls: {files.folder}/guest.crt: no certificate that fits the key in {files.folder}/other.key" in done.stderr
    done = refused(door, "--config", str(files.config(key="nowhere.key")))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"tls: {files.folder}/nowhere.key: cannot be read: No such file" in done.stderr
