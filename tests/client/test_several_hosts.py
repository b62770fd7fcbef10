"""`guestctl` over several hosts: ids with their host, and a host that gives no answer as a row and an exit status."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from guest_api.guest_api_pb2 import GpuInfoResponse
from guest_client.guestctl.cli import run
from tests.client.fake_proxy import Fleet, Guest, serve
from tests.client.in_process import output_of, refusal_of
from tests.client.terminal import on_terminal
from tests.client.test_completion import completed
from tests.guest_contract.test_health import answer, healthy


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GUESTCTL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def fleet() -> Fleet:
    """Host a: a guest of a name that both hosts have, and one of its own."""
    return Fleet({"vm1": Guest(answer(), {"rack": "a"}), "web": Guest(GpuInfoResponse())})


@pytest.fixture
def other() -> Fleet:
    """Host b: the same name, with a sick card."""
    sick = healthy()
    sick.row_remap_pending = True
    return Fleet({"vm1": Guest(answer(sick), {"rack": "b"})})


@pytest.fixture
def both(address: str, other: Fleet, socket_folder: Path) -> Iterator[list[str]]:
    where = f"unix:{socket_folder}/other"
    server, pool, _ = serve(other, where)
    yield ["--proxy", f"a={address}", "--proxy", f"b={where}"]
    server.stop(None).wait()
    pool.shutdown()


@pytest.fixture
def three(both: list[str]) -> list[str]:
    """Nobody listens at the third."""
    return [*both, "--proxy", "dead=unix:/nobody"]


def _incomplete(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(list(arguments)) == 4
    out, err = capsys.readouterr()
    assert err == "guestctl: 1 of 3 hosts gave no answer: dead\n"
    return out


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_guests_of_all_hosts_are_listed_with_their_host_and_a_dead_one_is_a_row(
    capsys: pytest.CaptureFixture[str], three: list[str]
) -> None:
    lines = _incomplete(capsys, "list", *three).splitlines()
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["a/vm1", "serving", "ok"],
        ["a/web", "serving", "–"],  # noqa: RUF001 - a dash
        ["b/vm1", "serving", "degraded"],
        ["dead", "no", "answer"],
    ]
    assert lines[5].startswith("dead: unavailable: cannot connect")
    said = _lines(_incomplete(capsys, "list", *three, "-o", "json"))
    assert [each["host"] for each in said] == ["a", "b", "dead"]
    assert [guest["id"] for guest in said[0]["guests"]] == ["vm1", "web"]
    assert said[2]["status"]["code"] == 14
    rows = _rows(_incomplete(capsys, "list", *three, "-o", "csv"))
    assert [(row["host"], row["id"], row["state"]) for row in rows][2:] == [("b", "vm1", "serving"), ("dead", "", "unavailable")]
    assert rows[3]["reason"].startswith("cannot connect")


def test_cards_of_all_hosts_stand_in_one_table_and_scripts_get_the_host_with_each(
    capsys: pytest.CaptureFixture[str], three: list[str]
) -> None:
    lines = _incomplete(capsys, "gpu", "--all", *three).splitlines()
    assert [line.partition(":")[0] for line in lines[:4]] == ["a/vm1", "a/web", "b/vm1", "dead"]
    assert [line.split()[:2] for line in lines[5:8]] == [["a/vm1", "0"], ["a/vm1", "1"], ["b/vm1", "0"]]
    said = {(each["host"], each["guest_id"]) for each in _lines(_incomplete(capsys, "gpu", "--all", *three, "-o", "json"))}
    assert said == {("a", "vm1"), ("a", "web"), ("b", "vm1"), ("dead", "")}
    rows = _rows(_incomplete(capsys, "gpu", "--all", *three, "-o", "csv"))
    assert {(row["host"], row["guest_id"], row["status"]) for row in rows} == {
        ("a", "vm1", "ok"),
        ("a", "web", "ok"),
        ("b", "vm1", "ok"),
        ("dead", "", "unavailable"),
    }


def test_an_id_is_looked_for_on_every_host_and_with_a_host_on_that_one_alone(
    capsys: pytest.CaptureFixture[str], three: list[str], both: list[str]
) -> None:
    assert [line.partition(":")[0] for line in output_of(capsys, "gpu", "vm1", *both).splitlines()[:2]] == ["a/vm1", "b/vm1"]
    assert output_of(capsys, "gpu", "web", *both) == "a/web: no NVIDIA GPU\n"
    assert output_of(capsys, "gpu", "a/web", *three) == "a/web: no NVIDIA GPU\n", "the dead host is not asked"
    assert output_of(capsys, "list", "b/vm1", *three, "-o", "json").count("\n") == 1
    assert "knows no guest nix" in refusal_of(capsys, 3, "gpu", "nix", *both)
    assert "no proxy is called so" in refusal_of(capsys, 2, "gpu", "c/web", *both)
    assert run(["gpu", "web", "b/web", *both]) == 3
    assert "knows no guest b/web" in capsys.readouterr().err


def test_health_of_all_hosts_is_6_for_a_sick_card_and_a_host_without_an_answer_comes_first(
    capsys: pytest.CaptureFixture[str], three: list[str], both: list[str]
) -> None:
    lines = _incomplete(capsys, "health", *three).splitlines()
    assert lines[0].startswith("b/vm1 GPU 0 GPU-0: degraded: a memory row waits")
    assert lines[1].endswith("See whether the host runs and its proxy answers.")
    assert lines[2] == "3 cards of 3 guests: 2 ok, 1 degraded"
    assert run(["health", *both, "-o", "json"]) == 6
    assert [(each["host"], each["guest_id"], each["health"]) for each in _lines(capsys.readouterr().out)] == [
        ("a", "vm1", "ok"),
        ("a", "web", "ok"),
        ("b", "vm1", "degraded"),
    ]
    assert output_of(capsys, "health", "a/vm1", *both) == "2 cards of 1 guest: 2 ok\n"


def test_top_shows_all_hosts_and_one_that_is_away_in_each_table(capsys: pytest.CaptureFixture[str], three: list[str]) -> None:
    lines = _incomplete(capsys, "top", "--sort", "guest", "--count", "1", "--interval", "30", *three).splitlines()
    assert lines[0].startswith("3 guests, 1 host away, 1 card not ok; 3 GPUs")
    assert lines[1].startswith("dead: no answer, trying again: unavailable: cannot connect")
    assert [line.split()[:2] for line in lines[3:6]] == [["a/vm1", "0"], ["a/vm1", "1"], ["b/vm1", "0"]]
    (said,) = _lines(_incomplete(capsys, "top", "--count", "1", *three, "-o", "json"))
    assert sorted((each["host"], each["guest_id"]) for each in said["guests"]) == [
        ("a", "vm1"),
        ("a", "web"),
        ("b", "vm1"),
        ("dead", ""),
    ]


def test_a_host_that_hangs_is_in_the_first_table_and_delays_no_other(
    capsys: pytest.CaptureFixture[str], both: list[str], silent: tuple[str, threading.Event]
) -> None:
    hanging = [*both, "--proxy", f"slow={silent[0]}"]
    assert run(["top", "--count", "1", "--interval", "1", *hanging]) == 5
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("slow: no answer, trying again: deadline exceeded: no answer yet")
    assert lines[0].startswith("3 guests, 1 host away")
    assert run(["list", "--timeout", "1", *hanging]) == 5
    assert capsys.readouterr().out.count("serving") == 3


def test_top_on_a_terminal_follows_all_hosts_and_takes_one_that_comes_later(both: list[str], socket_folder: Path) -> None:
    late = f"unix:{socket_folder}/late"
    with on_terminal("top", *both, "--proxy", f"late={late}", columns=160) as terminal:
        frame = terminal.until(lambda frame: sum("/vm1 " in line for line in frame) == 3, "three cards")
        assert any(line.startswith("late: no answer, trying again") for line in frame)
        server, pool, _ = serve(Fleet({"vm9": Guest(answer(healthy()))}), late)
        try:
            frame = terminal.until(lambda frame: any(line.startswith("late/vm9 ") for line in frame), "the late host's card")
            assert frame[0].startswith("4 guests, 1 card not ok; 4 GPUs")
            terminal.press("q")
            assert terminal.end() == 0
        finally:
            server.stop(None).wait()
            pool.shutdown()


def test_a_command_about_one_guest_takes_it_with_its_host(
    capsys: pytest.CaptureFixture[str], both: list[str], fleet: Fleet
) -> None:
    assert output_of(capsys, "card", "b/vm1", "0", *both).startswith("vm1 GPU 0: degraded")
    assert "agent of web" in output_of(capsys, "info", "a/web", *both)
    assert "give HOST/ID" in refusal_of(capsys, 2, "info", "web", *both)
    assert "no proxy is called so" in refusal_of(capsys, 2, "shutdown", "c/web", "--yes", *both)
    assert "give HOST/ID" in refusal_of(capsys, 2, "watch", *both)
    assert not fleet.guests["web"].shut_down
    output_of(capsys, "shutdown", "a/web", "--yes", *both)
    assert fleet.guests["web"].shut_down


def test_a_file_of_hosts_and_a_context_name_them_too(
    capsys: pytest.CaptureFixture[str], both: list[str], tmp_path: Path, config_file: Path
) -> None:
    addresses = [each.partition("=")[2] for each in both[1::2]]
    hosts = tmp_path / "hosts"
    hosts.write_text(f"# the lab\na {addresses[0]}  # first\n\n{addresses[1]}\n")
    shown = [line.split()[0] for line in output_of(capsys, "list", "--hosts", str(hosts)).splitlines()[1:]]
    assert shown == ["a/vm1", "a/web", f"{addresses[1]}/vm1"]
    config_file.parent.mkdir(parents=True)
    config_file.write_text(f'current = "lab"\n[contexts.lab]\nhosts = "{hosts}"\nselector = "rack=a"\n')
    assert [line.split()[0] for line in output_of(capsys, "list").splitlines()[1:]] == ["a/vm1"]
    hosts.write_text(f"a {addresses[0]}\n")
    assert '"host":"a"' in output_of(capsys, "list", "-o", "json"), "a file of one host has the same form as one of many"
    assert completed("guestctl info a/v") == (["a/vm1"], "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ": names no host: write NAME ADDR, one a line"),
        ("a unix:/x\na unix:/y\n", ": two proxies called a"),
        ("a unix:/x\nb unix:/x\n", ": two proxies at unix:/x"),
        ("ok unix:/x\na b c\n", ":2: a line is NAME ADDR or ADDR"),
        ("nowhere\n", ":1: 'nowhere' is no address"),
        ("\xff", ": not UTF-8 at byte 0"),
    ],
)
def test_a_bad_file_of_hosts_is_one_line_that_names_place_and_rule(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_bytes(text.encode("latin-1"))
    assert f"{hosts}{said}" in refusal_of(capsys, 2, "list", "--hosts", str(hosts))


def test_hosts_that_cannot_be_told_apart_or_exclude_each_other_are_misuse(
    capsys: pytest.CaptureFixture[str], both: list[str], tmp_path: Path
) -> None:
    assert "two proxies called unix:/x" in refusal_of(capsys, 2, "list", "--proxy", "unix:/x", "--proxy", "unix:/x")
    assert "exclude each other" in refusal_of(capsys, 2, "list", "--hosts", str(tmp_path), *both)
    assert "exclude each other" in refusal_of(capsys, 2, "info", "--guest", "unix:/x", *both)
    assert "no proxy is called so" in refusal_of(capsys, 2, "gpu", "a/vm1", "--proxy", "unix:/x")


def test_a_host_that_refuses_is_a_row_and_its_kind_of_failure_the_exit_status(
    capsys: pytest.CaptureFixture[str], both: list[str], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    plain = [*both, "--proxy", "tcp=192.0.2.1:1", "--token-file", str(token)]
    assert run(["list", *plain]) == 2, "a token is not sent over plain TCP"
    out, err = capsys.readouterr()
    assert "tcp: invalid argument: 192.0.2.1:1: a token is not sent without TLS" in out
    assert err == "guestctl: 1 of 3 hosts gave no answer: tcp\n"


def test_a_stream_that_breaks_keeps_what_came_of_that_host(
    capsys: pytest.CaptureFixture[str], both: list[str], other: Fleet
) -> None:
    other.collect_breaks = True
    other.guests["vm2"] = Guest(refuses_with=(grpc.StatusCode.UNAVAILABLE, "guest vm2: unreachable"))
    assert run(["gpu", "--all", *both]) == 4
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines[:5]] == [
        "a/vm1: 2 GPUs",
        "a/web: no NVIDIA GPU",
        "b: unavailable: the proxy stops",
        "b/vm1: 1 GPU",
        "b/vm2: unavailable: unreachable",
    ]
