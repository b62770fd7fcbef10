"""The wheel in an environment that holds nothing but the runtime lock."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from pathlib import Path

import pytest

from tests.packaging.clean_environment import bare_variables, check_requirements, make_environment
from tests.packaging.source_tree import VERSION, build, copy_tree
from tests.round_trip.processes import running

COMMAND_SECONDS = 30


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    return make_environment(folder / "environment", build(copy_tree(folder / "tree"), folder / "dist").wheel)


@pytest.fixture(autouse=True)
def no_other_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def said(*command: str | Path) -> str:
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=bare_variables(), timeout=COMMAND_SECONDS)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def fetched(path: str, sock: Path) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(COMMAND_SECONDS)
        connection.connect(str(sock))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        with connection.makefile("rb") as answer:
            return answer.read().decode()


def test_the_lock_names_everything_that_the_wheel_asks_for_and_none_of_the_tools(programs: Path) -> None:
    check_requirements(programs)
    ended = subprocess.run([programs / "python", "-c", "import pytest"], check=False, capture_output=True, env=bare_variables())
    assert b"No module named 'pytest'" in ended.stderr


def test_each_command_has_the_version_of_the_wheel(programs: Path) -> None:
    for command in ("guest-service", "vmm-proxy", "guestctl"):
        assert VERSION in said(programs / command, "--version")


def test_a_simulated_guest_is_sampled_served_shown_and_asked_through_the_proxy(programs: Path, tmp_path: Path) -> None:
    for rack, cards in {"h200": 1, "h200x8": 8, "none": 0, "no-driver": 0}.items():
        assert len(json.loads(said(programs / "guest-service", "gpu-info", "--simulate", rack))["gpus"]) == cards
    grpc, http, proxy = tmp_path / "g", tmp_path / "h", tmp_path / "p"
    config = tmp_path / "config.toml"
    config.write_text("[http]\npublic_sysinfo = true\n", encoding="utf-8")
    serve = [f"{programs}/guest-service", "serve", "--config", f"{config}", "--grpc", f"unix:{grpc}", "--http", f"unix:{http}"]
    with (
        running([*serve, "--simulate", "h200"], f"unix:{grpc}"),
        running(
            [f"{programs}/vmm-proxy", "serve", "--grpc", f"unix:{proxy}", "--http", "off", "--guest", f"vm1=unix:{grpc}"],
            f"unix:{proxy}",
        ),
    ):
        reply = json.loads(said(programs / "guestctl", "--proxy", f"unix:{proxy}", "-o", "json", "gpu", "--max-age", "60", "vm1"))
        assert len(reply["gpus"]) == 1
        page = fetched("/", http)
        assert "GPU-" in page
        styles = re.search(r'href="/?(assets/[^"]+\.css[^"]*)"', page)
        assert styles
        assert fetched(f"/{styles[1]}", http).startswith("HTTP/1.1 200 ")
