"""The seccomp profile of the pods: the proxy works under it, and what it needs not is refused."""

from __future__ import annotations

import ctypes.util
import json
import platform
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options
from tests.agent.agent import running_agent
from tests.eventually import eventually
from tests.host_facts.podman import IMAGE, missing_for_podman, running_podman
from tests.kubevirt.api_server import ApiServer
from tests.kubevirt.objects import NODE, instance
from tests.packaging.source_tree import ROOT
from tests.proxy import processes

PROFILE = ROOT / "deploy/kubernetes/seccomp/guestscope-vmm-proxy.json"

pytestmark = [
    pytest.mark.skipif(not ctypes.util.find_library("seccomp"), reason="missing: libseccomp2"),
    pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="the profile is for x86_64 and aarch64"),
    pytest.mark.timeout(120),
]


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sc") as folder:
        yield Path(folder)


def under(program: str) -> subprocess.CompletedProcess[str]:
    """A Python program under the profile."""
    command = [sys.executable, "-m", "tests.kubernetes.under_seccomp", str(PROFILE), sys.executable, "-c", program]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=60)


@pytest.mark.parametrize("family", ["AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK", "AF_VSOCK"])
def test_a_socket_that_the_proxy_needs_can_be_had(family: str) -> None:
    # A kernel without the family says EAFNOSUPPORT, the profile ENOSYS.
    done = under(
        "import errno, socket\n"
        f"try:\n    socket.socket(socket.{family}, socket.SOCK_RAW if '{family}' == 'AF_NETLINK' else socket.SOCK_STREAM)\n"
        "except OSError as error:\n    assert error.errno in (errno.EAFNOSUPPORT, errno.ENODEV), error"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "call",
    [
        "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "check(libc.ptrace(0, 0, 0, 0))",
        "check(libc.mount(b'none', b'/mnt', b'tmpfs', 0, 0))",
        "check(libc.unshare(0x10000000))",
        "check(libc.syscall(323, 0))",  # userfaultfd of x86_64; of no processor here something that is allowed
    ],
)
def test_what_the_proxy_needs_not_is_refused(call: str) -> None:
    done = under(
        "import ctypes, errno, os, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "def check(result):\n    if result == -1: raise OSError(ctypes.get_errno(), 'refused')\n"
        f"try:\n    {call}\nexcept OSError as error:\n    raise SystemExit(0 if error.errno == errno.ENOSYS else str(error))\n"
        "raise SystemExit('it was allowed')"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_thread_may_have_a_namespace_of_its_own() -> None:
    profile = json.loads(PROFILE.read_text(encoding="utf-8"))
    (clone,) = [rule for rule in profile["syscalls"] if "clone" in rule["names"]]
    # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET (sched.h).
    namespaces = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
    assert clone["args"] == [{"index": 0, "value": namespaces, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]
    names = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert not names & {"clone3", "unshare", "setns", "bpf", "io_uring_setup", "ptrace", "socketcall", "keyctl"}
    families = {rule["args"][0]["value"] for rule in profile["syscalls"] if rule["names"] == ["socket"]}
    assert families == {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_VSOCK}


def test_a_container_runtime_starts_a_pods_program_under_the_profile() -> None:
    """A runtime's own last steps before the program are under it too, and a profile may be too tight for them."""
    if missing := missing_for_podman():
        pytest.skip(missing)
    with running_podman() as podman:
        said = podman(
            *("run", "--rm", "--security-opt", f"seccomp={PROFILE}", "--security-opt", "no-new-privileges", "--cap-drop", "ALL"),
            *(
                "--user",
                "65532:65532",
                "--read-only",
                IMAGE,
                "sh",
                "-c",
                'while read -r line; do echo "$line"; done </proc/self/status',
            ),
        )
    assert re.search(r"^Seccomp:\s+2$", said, re.MULTILINE)
    assert re.search(r"^Uid:\s+65532\b", said, re.MULTILINE)


async def test_the_proxy_serves_and_follows_under_the_profile(sockets: Path, tmp_path: Path) -> None:
    api = ApiServer(tmp_path)
    config = sockets / "config.toml"
    address = UnixAddress(str(sockets / "p"))
    async with api.serving():
        api.put(instance(cid=0x7FFFFFF0))
        config.write_text(
            f"[grpc]\nlisten = ['{address}']\n[directory]\ndir = '{sockets}'\nregistered_file = '{sockets}/r.json'\n"
            f"[audit]\nfile = '{sockets}/a'\n[kubevirt]\nnode = '{NODE}'\nkubeconfig = '{api.kubeconfig()}'\n"
            f"[[guest]]\nid = 'vm1'\naddress = 'unix:{sockets}/g'\n"
        )
        wrapped = (sys.executable, "-m", "tests.kubernetes.under_seccomp", str(PROFILE))
        with running_agent("--grpc", f"unix:{sockets}/g", "--http", "off", "--simulate", "none"):
            async with (
                processes.serving("--config", str(config), "--http", "127.0.0.1:0", prefix=wrapped) as proxy,
                grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel,
            ):
                guest = guest_api_pb2_grpc.ProxiedGuestApiStub(channel)
                answer = await guest.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=20)
                assert answer == guest_api_pb2.GpuInfoResponse()
                await eventually(lambda: api.watching == 1)
                with pytest.raises(grpc.aio.AioRpcError) as unreachable:
                    await guest.GpuInfo(guest_api_pb2.Id(id="tenant-blue.vm1"), timeout=20)
                assert unreachable.value.code() == grpc.StatusCode.UNAVAILABLE
                seccomp = Path(f"/proc/{proxy.process.pid}/status").read_text()
                assert "Seccomp:\t2" in seccomp
                status, _, log = await proxy.stop()
                assert status == 0, log
                assert "Function not implemented" not in log
