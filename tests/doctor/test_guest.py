"""`guest-service doctor` as a process: configuration, listeners, engine, identity and power, each right and wrong."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from tests.agent.agent import running_agent
from tests.doctor.places import GuestPlace
from tests.doctor.reports import guest_doctor
from tests.host_facts.engine import running_engine
from tests.policy import certificates

# Each test starts several processes, and a machine with other work may be slow.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def place(sockets: Path) -> GuestPlace:
    return GuestPlace(sockets)


def test_a_simulated_guest_that_runs_well_has_nothing_wrong(place: GuestPlace) -> None:
    place.tables |= {"gpu": 'simulate = "h200x8"', "http": f'listen = "unix:{place.folder}/h"\npublic_sysinfo = true'}
    config = place.write()
    with running_agent("--config", str(config)) as agent:
        agent.log_line("listening for HTTP on")
        report = guest_doctor(config)
    assert (report.status, report.verdict) == (0, "ok")
    assert "8 cards" in report.only("sample")["seen"]
    assert "confidential computing on, ready" in report.only("sample")["seen"]
    assert report.of("grpc")[0]["seen"].endswith("0660")
    assert "guest-service 0.1.0 answers" in report.of("grpc")[1]["seen"]
    assert report.verdicts("http") == ["ok", "ok"]
    assert report.verdicts("pci")[0] == "note"
    assert report.only("library")["verdict"] == "note"


def test_the_doctor_leaves_nothing_behind_and_asks_for_nothing_to_be_written(place: GuestPlace) -> None:
    place.card()
    place.sys.load_module()
    config = place.write()
    before = sorted(path for path in place.folder.rglob("*"))
    guest_doctor(config)
    assert sorted(path for path in place.folder.rglob("*")) == before


def test_text_on_a_terminal_has_a_line_per_finding_and_status_1_when_something_is_wrong(place: GuestPlace) -> None:
    command = [sys.executable, "-m", "guest_service", "doctor", "--config", str(place.write())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stderr) == (1, "")
    *lines, last = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "wrong", "note"}
    assert last.startswith(f"17 checks, {len(lines)} findings: ")
    assert any(line.startswith("wrong  grpc ") and "systemctl start guest-service" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "word"), [('[gpu]\nsimulate = "h300"', "h200x8"), ("[grpc", "TOML"), ('[grpc]\nlisten = ["x:y:z"]', "x:y:z")]
)
def test_what_serve_would_refuse_is_told_in_its_words(tmp_path: Path, text: str, word: str) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(text)
    assert word in guest_doctor(config).wrong("config")["seen"]


def test_an_agent_that_does_not_run_is_wrong_and_so_is_what_it_left(place: GuestPlace) -> None:
    config = place.write()
    assert "no socket is there" in report_of_grpc(config)
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(place.socket))
        place.socket.chmod(0o660)
    assert "left by a server that is gone" in report_of_grpc(config)
    place.socket.unlink()
    place.socket.write_text("")
    found = [finding["seen"] for finding in guest_doctor(config).of("grpc")]
    assert any("is no socket" in seen for seen in found)


def report_of_grpc(config: Path) -> str:
    return guest_doctor(config).wrong("grpc")["seen"]


def test_a_socket_that_everybody_may_open_and_a_folder_that_everybody_may_write_are_wrong(place: GuestPlace) -> None:
    config = place.write()
    with running_agent("--config", str(config)):
        place.socket.chmod(0o666)
        place.folder.chmod(0o777)
        report = guest_doctor(config)
    found = {finding["seen"].split(": ")[1]: finding["do"] for finding in report.of("grpc") if finding["verdict"] == "wrong"}
    assert found.keys() == {"everybody may open it", "anybody can replace it"}
    assert found["everybody may open it"].endswith(f"chmod 0660 {place.socket}")


def test_a_port_that_another_program_holds_is_told_with_its_name_and_number(place: GuestPlace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger, socket.create_server(("127.0.0.1", 0)) as silent:
        port, page = stranger.getsockname()[1], silent.getsockname()[1]
        place.tables |= {"grpc": f'listen = ["127.0.0.1:{port}"]', "http": f'listen = "127.0.0.1:{page}"'}
        report = guest_doctor(place.write())
    for check in ("grpc", "http"):
        assert f"(pid {os.getpid()})" in report.wrong(check)["seen"]
        assert "does not answer" in report.wrong(check)["seen"]


def test_a_tcp_agent_is_asked_and_a_free_port_is_told_to_be_free(place: GuestPlace) -> None:
    place.tables["grpc"] = 'listen = ["127.0.0.1:0"]'
    with running_agent("--config", str(place.write()), "--http", "127.0.0.1:0") as agent:
        port = agent.log_line("listening on 127").rpartition(":")[2]
        page = agent.http()
        place.tables |= {"grpc": f'listen = ["127.0.0.1:{port}"]', "http": f'listen = "{page}"'}
        config = place.write()
        report = guest_doctor(config)
        assert report.only("grpc")["verdict"] == "ok"
        assert report.verdicts("http") == ["ok", "note"], "the page is there, and /metrics is off"
    report = guest_doctor(config)
    for check in ("grpc", "http"):
        assert "nobody listens, and the port is free" in report.wrong(check)["seen"]


def test_an_engine_that_answers_is_right_one_that_is_gone_or_answers_badly_is_wrong(place: GuestPlace) -> None:
    engine_socket = place.folder / "e"
    place.tables["containers"] = f'socket = "{engine_socket}"'
    config = place.write()
    assert "is not there" in guest_doctor(config).wrong("containers")["seen"]
    with running_engine(engine_socket) as engine:
        assert "1 containers" in guest_doctor(config).only("containers")["seen"]
        engine.list_body = b"[1"
        assert "answers badly" in guest_doctor(config).wrong("containers")["seen"]


def test_an_engine_that_never_answers_is_a_line_and_all_others_are_there(place: GuestPlace) -> None:
    place.tables["containers"] = f'socket = "{place.folder}/e"'
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{place.folder}/e")
        silent.listen(8)
        report = guest_doctor(place.write())
    assert "10 s" in report.wrong("containers")["seen"]
    assert len({finding["check"] for finding in report.findings}) == 17


@pytest.mark.parametrize(
    ("content", "mode", "verdicts", "word"),
    [
        ('instance_id = "ab12"\n', 0o600, ["ok"], "ab12"),
        ('instance_id = "xyz"\n', 0o600, ["wrong"], "hexadecimal"),
        ('name = "a"\n', 0o600, ["wrong"], "allowed are"),
        (None, 0, ["wrong"], "cannot be read"),
        ('instance_id = "ab12"\n', 0o666, ["wrong", "ok"], "others may write"),
    ],
)
def test_an_identity_file_is_read_as_the_agent_reads_it(
    place: GuestPlace, content: str | None, mode: int, verdicts: list[str], word: str
) -> None:
    file = place.folder / "identity.toml"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    place.tables["identity"] = f'file = "{file}"'
    report = guest_doctor(place.write())
    assert report.verdicts("identity") == verdicts
    assert word in report.of("identity")[0]["seen"]


@pytest.mark.parametrize(
    ("power", "verdict"),
    [
        ('shutdown_command = ["/absent/poweroff"]', "wrong"),
        ('shutdown_command = ["true", "s3cret"]', "ok"),
        ('allow_shutdown = false\nshutdown_command = ["/absent"]', "note"),
    ],
)
def test_the_shutdown_command_must_be_there_where_shutdown_is_allowed(place: GuestPlace, power: str, verdict: str) -> None:
    place.tables["power"] = power
    finding = guest_doctor(place.write()).only("power")
    assert finding["verdict"] == verdict
    assert "s3cret" not in finding["seen"], "its arguments may hold a secret"


def test_a_plain_tcp_address_that_others_reach_is_a_note(place: GuestPlace) -> None:
    place.tables["grpc"] = 'listen = ["0.0.0.0:0"]'
    found = guest_doctor(place.write()).of("grpc")
    assert any("reads all of this guest" in finding["seen"] for finding in found)
    assert {finding["verdict"] for finding in found} == {"note"}


@pytest.mark.parametrize("arguments", [["--confg", "x"], ["-o", "xml"], ["extra"]])
def test_misuse_is_status_2_and_one_line(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "guest_service", "doctor", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_an_agent_with_tls_shows_the_certificate_of_its_file_and_its_files_are_judged(place: GuestPlace) -> None:
    authority = trustme.CA()
    chain, key = certificates.write(place.folder, "agent", authority, "127.0.0.1")
    key.chmod(0o640)
    ca = certificates.write_authority(place.folder, "proxies.ca", authority)
    place.tables |= {
        "grpc": 'listen = ["127.0.0.1:0"]',
        "tls": f'certificate = "{chain}"\nkey = "{key}"\nclient_authorities = "{ca}"',
    }
    with running_agent("--config", str(place.write())) as agent:
        port = agent.log_line("listening on 127").rpartition(":")[2]
        place.tables["grpc"] = f'listen = ["127.0.0.1:{port}"]'
        config = place.write()
        report = guest_doctor(config)
        assert "shows the certificate of tls.certificate" in report.only("grpc")["seen"]
        assert "ip:127.0.0.1" in report.only("tls")["seen"]
        key.chmod(0o644)
        assert "others may use the key" in guest_doctor(config).wrong("tls")["seen"]
        key.unlink()
        report = guest_doctor(config)
    for check in ("config", "tls"):
        assert "agent.key: cannot be read" in report.wrong(check)["seen"]
    assert report.only("grpc")["verdict"] == "ok", "one file that is gone does not hide the rest"
