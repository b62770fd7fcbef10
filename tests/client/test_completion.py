"""Shell completion: real scripts in a real shell, and guest ids that are asked of a proxy."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from guest_client.guestctl.completion import COMPLETION_SECONDS
from tests.client.fake_proxy import Fleet, Guest
from tests.client.terminal import COMMAND, environment


def completed(line: str, **more: str) -> tuple[list[str], str]:
    """What bash would be offered at the end of `line`, and what stood on stderr."""
    words = line.split(" ")
    done = subprocess.run(
        COMMAND, capture_output=True, text=True, check=False, timeout=30,
        env=environment(_GUESTCTL_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1), **more),
    )  # fmt: skip
    return [each.partition(",")[2] for each in done.stdout.splitlines() if each], done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_calls_guestctl(shell: str) -> None:
    done = subprocess.run([*COMMAND, "completion", shell], capture_output=True, text=True, check=True, env=environment())
    assert f"_GUESTCTL_COMPLETE={shell}_complete" in done.stdout
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_and_the_ids_of_guests(address: str, fleet: Fleet, tmp_path: Path) -> None:
    fleet.guests = {"web-1": Guest(), "web-2": Guest(), "db": Guest()}
    command = tmp_path / "guestctl"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m guest_client.guestctl "$@"\n')
    command.chmod(0o755)
    script = """
        eval "$(guestctl completion bash)"
        complete_line() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _guestctl_completion guestctl; echo "${COMPREPLY[@]}"; }
        complete_line guestctl wa
        complete_line guestctl gpu web
        complete_line guestctl top --sort po
    """
    environ = environment(GUESTCTL_PROXY=address)
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, timeout=60,
        env=environ | {"PATH": f"{tmp_path}:{environ['PATH']}"},
    )  # fmt: skip
    assert (done.stdout.splitlines(), done.stderr) == (["watch", "web-1 web-2", "power"], "")


def test_ids_come_from_the_proxy_that_the_line_names(address: str, fleet: Fleet) -> None:
    assert completed(f"guestctl --proxy {address} info v") == (["vm1", "vm2"], "")
    assert completed("guestctl gpu vm", GUESTCTL_PROXY=address) == (["vm1", "vm2"], "")
    assert completed("guestctl card vm", GUESTCTL_PROXY=address) == (["vm1", "vm2"], "")
    assert completed("guestctl card vm1 ", GUESTCTL_PROXY=address) == ([], ""), "a card is no guest"
    fleet.guests = {"vm1": Guest(), "vm2 $(touch x)": Guest(), "vm3\n": Guest(), "-rf": Guest()}
    assert completed("guestctl gpu vm", GUESTCTL_PROXY=address) == (["vm1"], ""), "what is no id is not given to a shell"


def test_a_proxy_that_is_silent_or_not_there_offers_nothing_and_says_nothing(silent: tuple[str, threading.Event]) -> None:
    assert completed("guestctl gpu ", GUESTCTL_PROXY="unix:/run/nobody") == ([], "")
    assert completed("guestctl gpu ", GUESTCTL_PROXY="no address") == ([], "")
    started = time.monotonic()
    assert completed("guestctl gpu ", GUESTCTL_PROXY=silent[0]) == ([], "")
    assert time.monotonic() - started < COMPLETION_SECONDS + 10, "bounded, on a busy machine too"
