"""NetworkInformation: what is shown, what stays private, and that one part's failure leaves the others whole."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from guest_service.host_facts import network
from guest_service.host_facts.errors import FactError
from guest_service.host_facts.network import NetworkFacts
from tests.eventually import turns
from tests.host_facts.machine import make_procfs

NO_WG = ("no-such-command-here",)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


async def test_this_machine_is_what_psutil_says_it_is() -> None:
    info = await NetworkFacts(wg_command=NO_WG).read()
    shown = {name for name in psutil.net_if_addrs() if name.startswith(("eth", "en", "wg"))}
    assert {interface.name for interface in info.interfaces} == shown
    for interface in info.interfaces:
        addresses = [a for a in psutil.net_if_addrs()[interface.name] if a.family in {socket.AF_INET, socket.AF_INET6}]
        assert [a.address for a in interface.addresses] == [a.address.partition("%")[0] for a in addresses]


async def test_bridges_of_containers_stay_private_until_their_prefix_is_configured(tmp_path: Path) -> None:
    procfs = make_procfs(tmp_path)
    shown = await NetworkFacts(procfs=procfs, wg_command=NO_WG).read()
    assert [i.name for i in shown.interfaces] == ["eth0"]
    assert (shown.interfaces[0].rx_bytes, shown.interfaces[0].tx_bytes) == (1, 3)
    assert (shown.interfaces[0].rx_errors, shown.interfaces[0].tx_errors) == (2, 4)
    more = await NetworkFacts(procfs=procfs, wg_command=NO_WG, extra_prefixes=["docker"]).read()
    assert [i.name for i in more.interfaces] == ["docker0", "eth0"]


async def test_a_part_that_fails_is_logged_and_the_others_are_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    resolv = tmp_path / "resolv.conf"
    resolv.write_text("nameserver 192.0.2.53\n")
    broken = make_procfs(tmp_path / "proc", net_dev="a\nb\nnonsense\n")
    wg = script(tmp_path / "wg", "echo boom >&2; exit 3")
    facts = NetworkFacts(procfs=broken, resolv_conf=resolv, wg_command=[str(wg)])
    for _ in range(3):
        info = await facts.read()
        assert (list(info.interfaces), list(info.dns_servers), info.wg_info) == ([], ["192.0.2.53"], "")
    assert sorted(record.message.partition(":")[0] for record in caplog.records) == ["interfaces", "wireguard"]
    assert "ended with 3: boom" in caplog.text


async def test_without_any_part_the_network_is_unknown_and_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_netlink() -> list[str]:
        raise PermissionError(1, "Operation not permitted")

    facts = NetworkFacts(procfs=tmp_path, resolv_conf=tmp_path, wg_command=NO_WG, gateways=no_netlink)
    with pytest.raises(FactError, match="neither"):
        await facts.read()


async def test_a_guest_without_resolv_conf_has_no_name_servers(tmp_path: Path) -> None:
    facts = NetworkFacts(procfs=make_procfs(tmp_path), resolv_conf=tmp_path / "absent", wg_command=NO_WG)
    assert list((await facts.read()).dns_servers) == []


def test_name_servers_are_addresses_in_resolver_order() -> None:
    text = "# nameserver 1.1.1.1\n; nameserver 1.1.1.1\nsearch a\nnameserver 192.0.2.2\nnameserver fe80::1%eth0\nnameserver x\nnameserver\n"
    assert network.parse_resolv_conf(text) == ["192.0.2.2", "fe80::1%eth0"]


@pytest.mark.parametrize(
    ("family", "address", "mask", "expected"),
    [
        (socket.AF_INET, "192.0.2.7", "255.255.255.0", ("192.0.2.7", 24)),
        (socket.AF_INET, "10.0.0.1", None, ("10.0.0.1", 32)),
        (socket.AF_INET6, "fe80::1%eth0", "ffff:ffff:ffff:ffff::", ("fe80::1", 64)),
        (socket.AF_INET6, "2001:db8::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", ("2001:db8::1", 128)),
    ],
)
def test_a_netmask_becomes_a_prefix_length(family: int, address: str, mask: str | None, expected: tuple[str, int]) -> None:
    (found,) = network.ip_addresses([(family, address, mask), (socket.AF_PACKET, "02:00:00:00:00:01", None)])
    assert (found.address, found.prefix) == expected


def test_gateways_of_multipath_and_of_other_tables_are_told_apart() -> None:
    def route(
        *, dst_len: int = 0, table: int = 254, kind: int = 1, **attributes: object
    ) -> tuple[dict[str, int], dict[str, object]]:
        return {"dst_len": dst_len, "table": table, "type": kind}, attributes

    hops = [{"attrs": [("RTA_GATEWAY", "192.0.2.4")]}, {"attrs": [("RTA_VIA", {"family": 10, "addr": "fe80::4"})]}]
    routes = [
        route(RTA_GATEWAY="192.0.2.2", RTA_PRIORITY=200),
        route(RTA_GATEWAY="192.0.2.1", RTA_PRIORITY=100),
        route(RTA_MULTIPATH=hops, RTA_PRIORITY=300),
        route(dst_len=24, RTA_GATEWAY="192.0.2.9"),
        route(table=0, RTA_TABLE=1000, RTA_GATEWAY="192.0.2.8"),
        route(kind=7, RTA_GATEWAY="192.0.2.7"),
        route(RTA_OIF=3),
    ]
    assert network.gateways_of(routes) == ["192.0.2.1", "192.0.2.2", "192.0.2.4", "fe80::4"]


async def test_wg_show_is_passed_on_as_it_is(tmp_path: Path) -> None:
    wg = script(tmp_path / "wg", 'echo "interface: wg0"; echo "  private key: (hidden)"')
    info = await NetworkFacts(procfs=make_procfs(tmp_path / "proc"), wg_command=[str(wg), "show"]).read()
    assert info.wg_info == "interface: wg0\n  private key: (hidden)\n"


async def test_a_hundred_callers_at_once_are_one_wg_show(tmp_path: Path) -> None:
    wg = script(tmp_path / "wg", f"echo run >> {tmp_path}/runs; echo wg0")
    facts = NetworkFacts(procfs=make_procfs(tmp_path / "proc"), wg_command=[str(wg)])
    answers = await asyncio.gather(*(facts.read() for _ in range(100)))
    assert {answer.wg_info for answer in answers} == {"wg0\n"}
    answers[0].wg_info = "changed"
    assert answers[1].wg_info == "wg0\n"
    assert (tmp_path / "runs").read_text() == "run\n"
    await facts.read()
    assert (tmp_path / "runs").read_text() == "run\n" * 2


async def test_a_caller_that_gives_up_leaves_the_reading_to_the_others(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    wg = script(tmp_path / "wg", f"read line < {tmp_path}/go; echo $line")
    facts = NetworkFacts(procfs=make_procfs(tmp_path / "proc"), wg_command=[str(wg)])
    gone, stays = asyncio.create_task(facts.read()), asyncio.create_task(facts.read())
    await turns()
    gone.cancel()
    await asyncio.to_thread((tmp_path / "go").write_text, "wg0\n")
    assert (await stays).wg_info == "wg0\n"
    assert gone.cancelled()


async def test_a_wg_that_hangs_is_killed_and_leaves_the_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wg = script(tmp_path / "wg", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    info = await NetworkFacts(procfs=make_procfs(tmp_path / "proc"), wg_command=[str(wg)], wg_bound_seconds=0.2).read()
    assert [i.name for i in info.interfaces] == ["eth0"]
    assert "no answer within 0.2 s" in caplog.text
    assert not Path(f"/proc/{int((tmp_path / 'pid').read_text())}").exists()


# A network namespace with names as guests have them; run inside `unshare --net`, because a thread's namespace is not the test run's.
NAMESPACE = r"""
set -e
ip link set lo up
ip link add eth0 type veth peer name veth1
ip link add wg0 type veth peer name veth2
ip link add docker0 type bridge
ip addr add 192.0.2.7/24 dev eth0
ip addr add 2001:db8::7/64 dev eth0 nodad
ip addr add 10.9.0.1/32 dev wg0
ip addr add 172.17.0.1/16 dev docker0
for link in eth0 veth1 wg0 veth2 docker0; do ip link set $link up; done
ip route add default via 192.0.2.1 dev eth0 metric 200
ip route add default via 192.0.2.2 dev eth0 metric 100
ip -6 route add default via 2001:db8::1 dev eth0
ip route add default via 192.0.2.99 dev eth0 table 100
ping -c 1 -W 1 192.0.2.1 >/dev/null 2>&1 || true
exec "$0" - <<'PYTHON'
import asyncio, json
from google.protobuf import json_format
from guest_service.host_facts.network import NetworkFacts
info = asyncio.run(NetworkFacts(wg_command=("no-such-command-here",)).read())
print(json.dumps(json_format.MessageToDict(info, preserving_proto_field_name=True)))
PYTHON
"""


def missing_for_namespaces() -> str | None:
    """What this machine lacks for a network namespace of its own, or None."""
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian: iproute2, util-linux)"
    probe = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "p"], capture_output=True, check=False
    )
    return None if probe.returncode == 0 else f"no network namespace or veth: {probe.stderr.decode().strip()}"


@pytest.fixture(scope="module")
def namespace() -> dict[str, list[dict[str, object]]]:
    if missing := missing_for_namespaces():
        pytest.skip(f"needs a network namespace: {missing}")
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", NAMESPACE, sys.executable],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, object]]] = json.loads(done.stdout)
    return found


def test_a_real_namespace_shows_its_interfaces_and_hides_bridges_and_peers(
    namespace: dict[str, list[dict[str, object]]],
) -> None:
    shown = {str(interface["name"]): interface for interface in namespace["interfaces"]}
    assert set(shown) == {"eth0", "wg0"}
    addresses = shown["eth0"]["addresses"]
    assert isinstance(addresses, list)
    assert {"address": "192.0.2.7", "prefix": 24} in addresses
    assert {"address": "2001:db8::7", "prefix": 64} in addresses
    assert shown["wg0"]["addresses"] != []
    assert "rx_bytes" in shown["eth0"] or "tx_bytes" in shown["eth0"]


def test_a_real_namespace_has_its_default_gateways_best_first_and_no_others(
    namespace: dict[str, list[dict[str, object]]],
) -> None:
    assert [gateway["address"] for gateway in namespace["gateways"]] == ["192.0.2.2", "192.0.2.1", "2001:db8::1"]
