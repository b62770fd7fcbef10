"""`vmm-proxy doctor` as a process: configuration, directory, listeners, libvirt, access and files, each right and wrong."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from guest_transport.doctor.findings import Verdict
from tests.agent.agent import running_agent
from tests.doctor.places import HostPlace
from tests.doctor.reports import host_doctor
from tests.domains.libvirt_daemon import LibvirtDaemon, libvirt_modules, module_environment, require_libvirtd
from tests.proxy import processes
from vmm_proxy.doctor.machine import Once
from vmm_proxy.doctor.user import judge_user

# Each test starts several processes, and a machine with other work may be slow.
pytestmark = pytest.mark.timeout(300)

UUID = "11111111-1111-1111-1111-111111111111"
TOKEN_HASH = "sha256:" + "ab" * 32


@pytest.fixture
def place(sockets: Path) -> HostPlace:
    return HostPlace(sockets)


async def test_a_proxy_and_its_guest_that_run_well_have_nothing_wrong(place: HostPlace) -> None:
    place.guest("vm1", f"unix:{place.folder}/g")
    place.tables |= {
        "http": f'listen = "unix:{place.folder}/h"',
        "audit": f'file = "{place.folder}/audit.jsonl"',
        "directory": f'registered_file = "{place.folder}/registered.json"',
    }
    config = place.write()
    with running_agent("--grpc", f"unix:{place.folder}/g", "--http", "off", "--simulate", "none"):
        async with processes.serving("--config", str(config), "--http", f"unix:{place.folder}/h") as proxy:
            assert proxy.process.stderr is not None
            # The pages come behind gRPC; this is the last line of a start.
            while "guests known" not in (line := (await proxy.process.stderr.readline()).decode()):
                assert line, "it ended instead"
            before = _files(place.folder)
            report = await host_doctor(config)
            assert _files(place.folder) == before
    assert (report.status, report.verdict) == (0, "ok")
    assert "guest vm1: guest-service 0.1.0 at unix:" in report.only("guests")["seen"]
    assert report.verdicts("grpc") == report.verdicts("http") == ["ok", "ok"]
    for check in ("config", "directory", "sockets", "audit", "state", "access"):
        assert report.only(check)["verdict"] == "ok", report.of(check)
    for check in ("libvirt", "kubevirt", "vsock", "tls"):
        assert report.only(check)["verdict"] == "note", report.of(check)


def _files(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_size if stat.S_ISREG(path.stat().st_mode) else 0) for path in folder.rglob("*"))


async def test_a_file_that_is_no_configuration_leaves_out_what_needs_one(place: HostPlace) -> None:
    place.tables["grpc"] = "lisen = []"
    report = await host_doctor(place.write())
    assert "did you mean listen?" in report.wrong("config")["seen"]
    assert {finding["check"] for finding in report.findings} == {"config", "user", "tasks", "clock"}
    assert "guests" in next(finding["seen"] for finding in report.of("config") if finding["verdict"] == "note")


async def test_one_file_that_is_refused_does_not_hide_the_rest(place: HostPlace) -> None:
    place.guest("vm1", f"unix:{place.folder}/absent")
    place.tables["access"] = f'token_file = "{place.folder}/absent.toml"'
    report = await host_doctor(place.write())
    for check in ("config", "access"):
        assert "absent.toml" in report.wrong(check)["seen"]
    assert "its socket does not exist" in report.wrong("guests")["seen"]


async def test_each_refused_entry_is_a_line_with_its_reason(place: HostPlace) -> None:
    folder = place.folder / "guests.d"
    folder.mkdir()
    (folder / "a.toml").write_text('id = "a"\naddress = "unix:/run/a"\nstate = "stopped"\n')
    (folder / "b.toml").write_text('id = "b/c"\naddress = "unix:/run/b"\n')
    (folder / "c.toml").write_text('id = "c"\naddress = "10.0.0.7:8000"\n')
    (folder / "d.toml").write_text("id = \n")
    place.guest("vm1", "unix:/run/one")
    place.guest("vm2", "unix:/run/one")
    registered = place.folder / "registered.json"
    registered.write_text('{"guests": [')
    place.tables["directory"] = f'dir = "{folder}"\nregistered_file = "{registered}"'
    report = await host_doctor(place.write())
    found = report.of("directory")
    assert {finding["verdict"] for finding in found} == {"wrong"}
    for word in ("b.toml", "c.toml", "d.toml", "registered.json", "guest vm2: its address belongs to the running guest vm1"):
        assert sum(word in finding["seen"] for finding in found) == 1, (word, found)
    assert len(found) == 5
    assert any(finding["verdict"] == "note" and "stopped" in finding["seen"] for finding in report.of("guests"))


async def test_a_folder_of_guests_that_cannot_be_read_is_wrong(place: HostPlace) -> None:
    place.tables["directory"] = f'dir = "{place.folder}/absent"'
    report = await host_doctor(place.write())
    assert "absent" in report.wrong("directory")["seen"]


async def test_a_pipe_in_place_of_the_registered_guests_is_wrong_and_holds_nothing_up(place: HostPlace) -> None:
    pipe = place.folder / "registered.json"
    os.mkfifo(pipe)
    place.tables["directory"] = f'registered_file = "{pipe}"'
    report = await host_doctor(place.write())
    assert "registered.json: is no regular file" in report.wrong("directory")["seen"]
    assert report.only("config")["verdict"] == report.only("access")["verdict"] == "ok"


async def test_a_reading_that_never_ends_is_told_to_each_check_that_shares_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vmm_proxy.doctor.machine.READ_SECONDS", 0.05)
    never = asyncio.Event()
    shared = Once("the files", never.wait)
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"the files could not be read within 0\.05 s"):
            await shared.get()
    never.set()
    assert await shared.get() is True


async def test_two_guests_at_one_socket_under_two_names_are_wrong(place: HostPlace) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"{place.folder}/one")
        (place.folder / "two").symlink_to("one")
        place.guest("vm1", f"hvsock:{place.folder}/one:8000")
        place.guest("vm2", f"hvsock:{place.folder}/two:8000")
        place.guest("vm3", f"hvsock:{place.folder}/two:8001")
        report = await host_doctor(place.write())
    assert "guests vm1 and vm2 lead to one socket" in report.wrong("directory")["seen"]


async def test_a_proxy_that_does_not_run_and_a_stranger_in_its_place_are_wrong(place: HostPlace) -> None:
    config = place.write()
    assert "no socket is there" in (await host_doctor(config)).wrong("grpc")["seen"]
    with running_agent("--grpc", f"unix:{place.socket}", "--http", "off", "--simulate", "none") as agent:
        wrong = (await host_doctor(config)).wrong("grpc")
    assert "does not answer as the proxy: not found" in wrong["seen"]
    assert f"(pid {agent.process.pid})" in wrong["seen"]


async def test_socket_files_that_are_missing_or_no_sockets_are_wrong(place: HostPlace) -> None:
    (place.folder / "file").touch()
    place.guest("vm1", f"hvsock:{place.folder}/absent:8000")
    place.guest("vm2", f"hvsock:{place.folder}/file:8000")
    place.guest("vm3", "vsock:77:8000", 'state = "stopped"')
    report = await host_doctor(place.write())
    found = report.of("sockets")
    assert ["No such file" in found[0]["seen"], "is no socket" in found[1]["seen"]] == [True, True]
    assert report.only("vsock")["verdict"] == "note", "a stopped guest needs nothing"


async def test_an_audit_log_and_a_state_folder_that_cannot_be_written_are_wrong(place: HostPlace) -> None:
    place.tables |= {
        "audit": f'file = "{place.folder}/absent/audit.jsonl"',
        "directory": f'registered_file = "{place.folder}/absent/registered.json"',
    }
    report = await host_doctor(place.write())
    for check in ("audit", "state"):
        assert "No such file" in report.wrong(check)["seen"]
    (place.folder / "folder.jsonl").mkdir()
    place.tables["audit"] = f'file = "{place.folder}/folder.jsonl"'
    assert "no regular file" in (await host_doctor(place.write())).wrong("audit")["seen"]


async def test_tokens_are_counted_and_nothing_of_them_is_shown(place: HostPlace) -> None:
    tokens = place.folder / "tokens.toml"
    tokens.write_text(f'[[token]]\nname = "ops"\nhash = "{TOKEN_HASH}"\nrole = "viewer"\n')
    tokens.chmod(0o644)
    place.tables["access"] = f'token_file = "{tokens}"'
    report = await host_doctor(place.write())
    assert report.only("access")["verdict"] == "note"
    assert "everybody may read it" in report.only("access")["seen"]
    assert TOKEN_HASH[7:] not in str(report.findings)
    tokens.chmod(0o640)
    assert "1 token" in (await host_doctor(place.write())).only("access")["seen"]
    tokens.chmod(0o666)
    assert "others may write" in next(
        finding["seen"] for finding in (await host_doctor(place.write())).of("access") if finding["verdict"] == "wrong"
    )


async def test_a_grant_for_certificates_that_nobody_is_asked_for_is_wrong(place: HostPlace) -> None:
    place.guests.append('[[access.grant]]\ncertificate = "dns:ops.example"\nrole = "operator"\n')
    assert "has no effect" in (await host_doctor(place.write())).wrong("access")["seen"]


async def test_a_libvirt_that_does_not_answer_is_wrong_and_holds_up_nothing(place: HostPlace, tmp_path: Path) -> None:
    modules = module_environment(libvirt_modules(tmp_path))
    place.tables["libvirt"] = f'uri = "test+unix:///default?socket={place.folder}/libvirt"'
    place.guest("vm1", f"unix:{place.folder}/absent")
    report = await host_doctor(place.write(), **modules)
    assert "libvirt" in report.wrong("libvirt")["seen"]
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{place.folder}/libvirt")
        silent.listen(4)
        report = await host_doctor(place.write(), **modules)
    assert "has not answered within" in report.wrong("libvirt")["seen"]
    assert report.wrong("guests")


async def test_domains_of_libvirt_are_counted_and_an_entry_that_was_written_down_comes_first(
    place: HostPlace, tmp_path: Path
) -> None:
    modules = libvirt_modules(tmp_path)
    require_libvirtd()
    daemon = LibvirtDaemon(place.folder, modules)
    place.guest(UUID, "vsock:77:8000", 'state = "stopped"')
    try:
        await daemon.start()
        await daemon.start_domain(UUID, "odd", "<vsock model='virtio'><cid auto='no' address='77'/></vsock>")
        place.tables["libvirt"] = f'uri = "{daemon.read_only_uri}"'
        report = await host_doctor(place.write(), **module_environment(modules))
    finally:
        await daemon.end()
    assert report.verdicts("libvirt") == ["note", "ok"]
    assert f"domain {UUID}" in report.of("libvirt")[0]["seen"]
    assert report.of("libvirt")[1]["seen"] == "libvirt answers: 1 running domain"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to tell root from the unit's user")
def test_root_is_told_that_the_proxys_user_may_less() -> None:
    assert judge_user(0, 990).verdict is Verdict.NOTE
    assert "runuser -u vmm-proxy" in judge_user(0, 990).advice
    assert judge_user(990, 990).verdict is judge_user(0, None).verdict is Verdict.OK
