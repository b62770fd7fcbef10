"""`guestctl` before a proxy that asks who calls: TLS, tokens and roles of a real `vmm-proxy` process."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from tests.client.terminal import COMMAND, environment
from tests.proxy import processes

CONFIG = """
[grpc]
listen = ["127.0.0.1:0"]
[tls]
certificate = "{folder}/cert.pem"
key = "{folder}/key.pem"
[access]
loopback = "none"
token_file = "{folder}/tokens.toml"
[[guest]]
id = "vm-blue"
address = "unix:{folder}/nobody"
labels = {{ tenant = "blue" }}
[[guest]]
id = "vm-red"
address = "unix:{folder}/nobody-else"
labels = {{ tenant = "red" }}
"""
TOKENS = """
[[token]]
name = "blue"
hash = "{hash}"
role = "viewer"
guests = {{ tenant = "blue" }}
"""
TOKEN = "blue-" + "x" * 40


@dataclass(frozen=True)
class Proxy:
    """Where it is, and the options that let a caller in."""

    address: str
    believing: tuple[str, ...]
    showing: tuple[str, ...]


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    done = await asyncio.to_thread(
        subprocess.run,
        [COMMAND[0], "-m", "vmm_proxy", "hash-token"],
        input=TOKEN,
        capture_output=True,
        text=True,
        check=True,
    )
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(TOKENS.format(hash=done.stdout.strip()))
    tokens.chmod(0o600)
    config = tmp_path / "proxy.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    async with processes.serving("--config", str(config)) as process:
        address = process.lines[-1].partition("listening on ")[2].strip()
        yield Proxy(address, ("--ca", str(tmp_path / "ca.pem")), ("--token-file", str(tmp_path / "token")))


async def _guestctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run, [*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=40, env=environment()
    )


async def test_a_token_opens_its_own_guests_and_no_others(proxy: Proxy) -> None:
    options = ("--proxy", proxy.address, *proxy.believing, *proxy.showing)
    listed = await _guestctl(*options, "-o", "json", "list")
    assert [guest["id"] for guest in json.loads(listed.stdout)["guests"]] == ["vm-blue"]
    collected = await _guestctl(*options, "gpu", "--all", "-o", "json")
    assert [json.loads(line)["guest_id"] for line in collected.stdout.splitlines()] == ["vm-blue"]
    watched = await _guestctl(*options, "watch", "--count", "1")
    assert (watched.returncode, watched.stderr) == (0, "")
    assert "vm-blue: unavailable: " in watched.stdout
    foreign = await _guestctl(*options, "gpu", "vm-red")
    unknown = await _guestctl(*options, "gpu", "vm-xxx")
    assert (foreign.returncode, foreign.stdout) == (3, "")
    assert foreign.stderr.replace("vm-red", "vm-xxx") == unknown.stderr, "what is out of sight is not there"


async def test_who_shows_nothing_or_may_not_gets_one_line_and_exit_status_1(proxy: Proxy) -> None:
    to_it = ("--proxy", proxy.address, *proxy.believing)
    for command in (["top"], ["watch"], ["info", "vm-blue"]):
        refused = await _guestctl(*to_it, *command)
        assert (refused.returncode, refused.stdout) == (1, ""), command
        assert "unauthenticated: " in refused.stderr
        assert refused.stderr.count("\n") == 1
    shutdown = await _guestctl(*to_it, *proxy.showing, "shutdown", "vm-blue", "--yes")
    assert (shutdown.returncode, shutdown.stdout) == (1, "")
    assert "permission denied: " in shutdown.stderr
    assert TOKEN not in shutdown.stderr
