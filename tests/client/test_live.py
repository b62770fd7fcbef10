"""`guestctl` before a real fleet: `vmm-proxy` and simulated guests in processes of their own, terminals, signals, pipes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from guest_contract.card_fields import DEFAULT_GROUPS
from tests.client.fake_proxy import Fleet
from tests.client.terminal import COMMAND, ENTER, LEAVE, Terminal, environment, on_terminal, widest, without_looks
from tests.round_trip.processes import running

PROXY = """
[[guest]]
id = "vm-big"
address = "unix:{folder}/big"
labels = {{ rack = "a" }}
[[guest]]
id = "vm-none"
address = "unix:{folder}/none"
labels = {{ rack = "b" }}
[[guest]]
id = "vm-dead"
address = "unix:{folder}/nobody"
[[guest]]
id = "vm-stopped"
address = "vsock:9:8000"
state = "stopped"
"""


@dataclass(frozen=True)
class Host:
    """A folder with sockets, and the address of a proxy in it."""

    folder: Path

    @property
    def address(self) -> str:
        return f"unix:{self.folder}/proxy"

    def proxy(self) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """The proxy itself, while the context lasts."""
        command = ["vmm-proxy", "serve", "--grpc", self.address, "--http", "off", "--config", f"{self.folder}/proxy.toml"]
        return running(command, self.address)

    def guest(self, name: str, rack: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        address = f"unix:{self.folder}/{name}"
        return running(["guest-service", "serve", "--simulate", rack, "--grpc", address, "--http", "off"], address)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """Guests with eight cards and with none; a dead and a stopped one are known, and the proxy is started by who needs it."""
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        host = Host(Path(folder))
        (host.folder / "proxy.toml").write_text(PROXY.format(folder=folder))
        with host.guest("big", "h200x8"), host.guest("none", "none"):
            yield host


@pytest.fixture(scope="module")
def proxy(host: Host) -> Iterator[str]:
    with host.proxy():
        yield host.address


def _shows_all(frame: list[str]) -> bool:
    return sum(line.startswith("vm-big ") for line in frame) == 8 and any("no NVIDIA GPU" in line for line in frame)


def _left_as_it_was(terminal: Terminal) -> None:
    assert terminal.settings() == terminal.before
    text = terminal.written(LEAVE)
    assert text.count(ENTER) == text.count(LEAVE)
    if terminal.process.returncode is not None:
        text = terminal.everything()
    assert text.endswith(LEAVE), "nothing is said after the screen is given back"


def test_top_shows_every_card_beside_a_dead_guest_and_q_leaves_quietly(proxy: str) -> None:
    """D21: one guest is dead, one stopped."""
    with on_terminal("top", "--proxy", proxy) as terminal:
        frame = terminal.until(_shows_all, "eight cards")
        assert frame[0].startswith("4 guests, 1 failing; 8 GPUs, at ")
        assert frame[1].startswith("vm-dead: unavailable: ")
        assert "vm-stopped: stopped" in frame
        assert len(frame) == 30
        assert widest(frame) <= 130
        terminal.press("q")
        assert terminal.end() == 0
        _left_as_it_was(terminal)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_top_quietly_and_gives_the_terminal_back(proxy: str, number: signal.Signals, status: int) -> None:
    with on_terminal("top", "--proxy", proxy) as terminal:
        terminal.until(_shows_all, "eight cards")
        terminal.process.send_signal(number)
        assert terminal.end() == status
        _left_as_it_was(terminal)


def test_top_follows_the_size_of_its_terminal(proxy: str) -> None:
    with on_terminal("top", "--proxy", proxy) as terminal:
        terminal.until(_shows_all, "eight cards")
        for columns, lines in ((60, 12), (200, 40), (25, 6)):
            terminal.resize(columns, lines)
            frame = terminal.until(lambda frame, lines=lines: len(frame) == lines, f"{lines} lines")  # type: ignore[misc] # bound now
            assert widest(frame) <= columns
            assert "vm-big" in " ".join(frame)


def test_keys_sort_and_scroll(proxy: str) -> None:
    with on_terminal("top", "--proxy", proxy, columns=100, lines=9) as terminal:
        terminal.until(lambda frame: frame[-1].startswith("by utilization  1-"), "the busiest first")
        terminal.press("g")
        first = terminal.until(lambda frame: frame[-1].startswith("by guest  1-"), "by guest")
        assert [line.split()[1] for line in first if line.startswith("vm-big ")] == ["0", "1", "2", "3", "4"]
        terminal.press("\x1b[B\x1b[Bj")
        third = terminal.until(lambda frame: "  4-" in frame[-1], "three lines down")
        assert next(line.split()[1] for line in third if line.startswith("vm-big ")) == "3"
        terminal.press("\x1b[F")
        terminal.until(lambda frame: frame[-2] == "vm-stopped: stopped", "the end")
        terminal.press("\x1b[Hk")
        terminal.until(lambda frame: "  1-" in frame[-1], "the beginning")
        terminal.press("x\x1b[15~\x1bZ")
        terminal.press("p")
        terminal.until(lambda frame: frame[-1].startswith("by power"), "by power, whatever else was typed")


def test_a_stopped_top_gives_the_terminal_to_the_shell_and_takes_it_again(proxy: str) -> None:
    with on_terminal("top", "--proxy", proxy) as terminal:
        terminal.until(_shows_all, "eight cards")
        terminal.process.send_signal(signal.SIGTSTP)
        pid, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
        assert (pid, os.WIFSTOPPED(status)) == (terminal.process.pid, True)
        _left_as_it_was(terminal)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.written(LEAVE + ENTER)
        terminal.press("m")
        terminal.until(lambda frame: frame[-1].startswith("by memory"), "a screen again")


def test_top_waits_for_a_proxy_that_goes_away_with_its_last_values_in_view(host: Host) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.ExitStack())
        other = Host(host.folder / "2")
        other.folder.mkdir()
        (other.folder / "proxy.toml").write_text(PROXY.format(folder=host.folder))
        first.enter_context(other.proxy())
        terminal = stack.enter_context(on_terminal("top", "--proxy", other.address, "--interval", "1"))
        terminal.until(_shows_all, "eight cards")
        first.close()
        frame = terminal.until(lambda frame: frame[1].startswith("no news from the proxy, trying again: "), "the trouble")
        assert _shows_all(frame)
        stack.enter_context(other.proxy())
        terminal.until(lambda frame: _shows_all(frame) and not frame[1].startswith("no news"), "the end of it")
        terminal.press("q")
        assert terminal.end() == 0


def test_top_of_a_proxy_that_is_not_there_says_so_and_takes_no_screen(host: Host) -> None:
    with on_terminal("top", "--proxy", f"unix:{host.folder}/nobody") as terminal:
        assert terminal.end() == 4
        text = terminal.everything()
        assert "is the address right" in text
        assert ENTER not in text
        assert text.count("\r\n") == 1


def test_a_terminal_that_can_show_no_screen_gets_tables(proxy: str) -> None:
    with on_terminal("top", "--proxy", proxy, "--count", "2", "--interval", "1", columns=70, TERM="dumb") as terminal:
        assert terminal.end() == 0
        text = terminal.everything()
        assert "\x1b[H" not in text
        assert text.count("4 guests, 1 failing") == 2
        assert widest(text.split("\r\n")) <= 70


def _process(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def test_watch_starts_at_once_with_a_dead_guest_and_ends_quietly_with_control_c(proxy: str) -> None:
    """D21."""
    with _process("watch", "--proxy", proxy, "--interval", "1", "-o", "json") as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(8)]
        assert {line["guest_id"] for line in lines[:4]} == {"vm-big", "vm-none", "vm-dead", "vm-stopped"}
        dead = next(line for line in lines if line["guest_id"] == "vm-dead")
        assert dead["status"]["code"] == 14
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert (process.returncode, said) == (130, "")


def test_watch_tells_when_a_guest_dies_and_when_it_is_back(host: Host, proxy: str) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.ExitStack())
        first.enter_context(host.guest("nobody", "h200"))
        process = stack.enter_context(_process("watch", "vm-dead", "--proxy", proxy, "--interval", "1"))
        stack.callback(process.kill)
        assert process.stdout is not None

        def until(words: str) -> None:
            seen = []
            for line in process.stdout or ():
                seen.append(line)
                if words in line:
                    return
            raise AssertionError(f"never {words!r}: {seen}")

        until("vm-dead: 1 GPU, CC enabled true, CC ready true")
        first.close()
        until("vm-dead: unavailable: ")
        stack.enter_context(host.guest("nobody", "none"))
        until("vm-dead: no NVIDIA GPU")


@pytest.mark.parametrize("arguments", [["-o", "json"], ["vm-none"], ["-l", "rack=z"]], ids=["busy", "nothing changes", "nobody"])
def test_watch_ends_when_nobody_reads_it_any_more(proxy: str, arguments: list[str]) -> None:
    with _process("watch", "--proxy", proxy, "--interval", "1", *arguments) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if "rack=z" in arguments:
            assert process.stderr.readline() == "guestctl: the proxy knows no guest with rack=z yet: waiting\n"
        else:
            assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 141
        assert process.stderr.read() == ""


def test_what_is_no_terminal_gets_a_table_per_interval_until_the_proxy_goes(host: Host) -> None:
    other = Host(host.folder / "3")
    other.folder.mkdir()
    (other.folder / "proxy.toml").write_text(PROXY.format(folder=host.folder))
    with contextlib.ExitStack() as server:
        server.enter_context(other.proxy())
        with _process("top", "--proxy", other.address, "--interval", "1") as process:
            assert process.stdout is not None
            tables = 0
            while tables < 2:
                tables += process.stdout.readline().startswith("4 guests, 1 failing; 8 GPUs")
            server.close()
            _, said = process.communicate(timeout=20)
    assert process.returncode == 4
    assert said.startswith("guestctl: WatchGpuInfo at ")
    assert said.count("\n") == 1


def test_all_guests_on_a_narrow_terminal_are_whole_and_fold_between_words(proxy: str) -> None:
    shown = {}
    for columns in (140, 100, 60):
        with on_terminal("gpu", "--all", "--proxy", proxy, columns=columns, NO_COLOR="1") as terminal:
            assert terminal.end() == 0
            shown[columns] = without_looks(terminal.everything().rpartition("\x1b[K")[2]).replace("\r\n", "\n")
        assert widest(shown[columns].split("\n")) <= columns
        for index in range(8):
            assert f"GPU-8e1f0a{index}3-2c47-4d6b-a9f0-53b7c6d1e2{index}8" in shown[columns], "no UUID is broken in two"
        assert "…" not in shown[columns]
    assert sum("GPU-8e1f0a03" in line and " W" in line for line in shown[140].split("\n")) == 1
    assert sum("GPU-8e1f0a03" in line and " W" in line for line in shown[100].split("\n")) == 0


def test_control_c_while_one_guest_is_silent_shows_those_that_answered(fleet: Fleet, address: str) -> None:
    fleet.collect_goes_on.clear()
    with on_terminal("gpu", "--all", "--proxy", address) as terminal:
        terminal.written("2 answered, waiting for more")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
        text = terminal.everything()
        assert text.endswith("guestctl: interrupted\r\n")
        assert "vm1: 1 GPU" in text
        assert "vm2: no NVIDIA GPU" in text
    fleet.collect_goes_on.set()


def test_everything_of_one_card_of_a_real_guest_is_shown_by_its_uuid(proxy: str) -> None:
    cards = json.loads(_process("-o", "json", "gpu", "vm-big", "--proxy", proxy).communicate(timeout=30)[0])["gpus"]
    shown, _ = _process("card", "vm-big", cards[3]["uuid"], "--proxy", proxy).communicate(timeout=30)
    assert shown.startswith("vm-big GPU 3: ok\n")
    groups = {line for line in shown.splitlines() if not line.startswith(" ")}
    assert {"base", *DEFAULT_GROUPS} <= groups
    assert "not asked: serial, throughput" in shown


def test_top_of_two_real_hosts_goes_on_while_one_proxy_is_away_and_takes_it_back(host: Host, proxy: str) -> None:
    other = Host(host.folder / "4")
    other.folder.mkdir()
    (other.folder / "proxy.toml").write_text(PROXY.format(folder=host.folder))
    hosts = other.folder / "hosts"
    hosts.write_text(f"a {proxy}\nb {other.address}\n")
    with contextlib.ExitStack() as here, _process("top", "--hosts", str(hosts), "--interval", "1") as process:
        output = process.stdout
        assert output is not None

        def until(words: str) -> None:
            while not output.readline().startswith(words):
                assert process.poll() is None

        until("4 guests, 1 host away, 1 failing; 8 GPUs")
        until("b: no answer, trying again: unavailable: ")
        with other.proxy():
            until("8 guests, 2 failing; 16 GPUs")
        until("8 guests, 1 host away, 2 failing; 16 GPUs")
        here.enter_context(other.proxy())
        until("8 guests, 2 failing; 16 GPUs")
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20)[1] == ""
        assert process.returncode == 130
