"""What the proxy's configuration refuses, each in one line that names the place and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from guest_transport.addresses import TcpAddress, UnixAddress, VsockAddress
from guest_transport.errors import SettingsError
from vmm_proxy.config import read_setup

GUEST = "[[guest]]\nid = 'vm1'\naddress = 'vsock:3:8000'\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "proxy.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[grcp]\n", "grcp: unknown key"),
        ("[grpc]\nport = 1\n", "grpc.port: unknown key"),
        ("[grpc]\nlisten = 'unix:/a'\n", "grpc.listen"),
        ("[grpc]\nlisten = []\n", "grpc.listen: at least one address"),
        (
            "[grpc]\nlisten = ['0.0.0.0:9000']\n",
            "grpc.listen: 0.0.0.0:9000: plain TCP beyond loopback needs grpc.allow_plaintext",
        ),
        ("[grpc]\nlisten = ['[::]:9000']\n", "grpc.listen: [::]:9000: plain TCP beyond loopback"),
        ("[grpc]\nread_only_listen = ['127.0.0.1:9000']\n", "grpc.read_only_listen: 127.0.0.1:9000: must be unix:/path"),
        ("[grpc]\nread_only_listen = ['unix:/a', 'unix:/a']\n", "grpc.read_only_listen: unix:/a: stands twice"),
        ("[grpc]\nlisten = ['unix:/a']\nread_only_listen = ['unix:/a']\n", "grpc.read_only_listen: unix:/a: stands twice"),
        ("[grpc]\nread_only_group = 'root'\n", "grpc.read_only_group: is without effect"),
        (
            "[grpc]\nread_only_listen = ['unix:/a']\nread_only_group = 'no-such-group'\n",
            "grpc.read_only_group: 'no-such-group' is not known on this host",
        ),
        ("[http]\nlisten = '127.0.0.1'\n", "http.listen"),
        ("[directory]\ndir = '/no/such/folder'\n", "directory.dir"),
        ("[directory]\ndir = 'here'\n", "directory.dir"),
        ("[[guest]]\nid = 'a/b'\naddress = 'vsock:3:1'\n", "guest[0].id: must be 1 to 128 characters"),
        ("[[guest]]\nid = '..'\naddress = 'vsock:3:1'\n", "guest[0].id: must be 1 to 128 characters"),
        ("[[guest]]\nid = 'vm1'\n", "guest[0].address: missing"),
        (GUEST + "[[guest]]\nid = 'vm2'\naddress = 'vsock:3'\n", "guest[1].address: 'vsock:3'"),
        ("[[guest]]\nid = 'a'\naddress = '127.0.0.1:0'\n", "guest[0].address: 127.0.0.1:0 cannot be dialled"),
        ("[[guest]]\nid = 'a'\naddress = 'vsock:any:1'\n", "guest[0].address: vsock:any:1 cannot be dialled"),
        ("[[guest]]\nid = 'a'\naddress = 'vsock:host:1'\n", "guest[0].address: vsock:host:1 is this host"),
        ("[[guest]]\nid = 'a'\naddress = '10.0.0.1:1'\n", "guest[0].address: plain TCP beyond loopback"),
        (GUEST + "state = 'paused'\n", "guest[0].state"),
        (GUEST + "instance_id = 'xyz'\n", "guest[0].instance_id: must be hex"),
        (GUEST + f"instance_id = '{'00' * 65}'\n", "guest[0].instance_id: must be hex, at most 64"),
        (GUEST + "labels = { 'a b' = '1' }\n", "guest[0].labels: a key must be"),
        (GUEST + "labels = { a = '1\\n2' }\n".replace("'1\\n2'", '"1\\n2"'), "guest[0].labels.a: must be printable"),
        (GUEST + "labels = { a = 1 }\n", "guest[0].labels"),
        (GUEST + "gpus = ['3b']\n", "guest[0].gpus: '3b' is no PCI address"),
        (GUEST + GUEST, "guest vm1 is known already"),
        (GUEST + "[[guest]]\nid = 'vm2'\naddress = 'vsock:3:8000'\n", "guest vm2: its address belongs to the running guest vm1"),
        ("[libvirt]\nurl = 'qemu:///system'\n", "libvirt.url: unknown key"),
        ("[libvirt]\nuri = 'qemu'\n", "libvirt.uri: 'qemu' is no libvirt URI"),
        ("[libvirt]\nuri = 'qemu+ssh://other/system'\n", "libvirt.uri: 'qemu+ssh://other/system' names another host"),
        ("[libvirt]\nuri = 'qemu://[/system'\n", "libvirt.uri: 'qemu://[/system' is no libvirt URI"),
        ("[libvirt]\nuri = 'qemu:///system'\nport = 0\n", "libvirt.port: must be from 1"),
        ("[grpc\n", "not TOML"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_names_the_place(tmp_path: Path, text: str, place: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        read_setup(path)
    message = str(caught.value)
    assert place in message
    assert str(path) in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("flags", "place"),
    [
        ({"guest_flags": ["vm1"]}, "--guest: 'vm1' is not ID=ADDR"),
        ({"guest_flags": ["a/b=vsock:3:1"]}, "--guest: the id must be"),
        ({"guest_flags": ["vm1=nonsense"]}, "--guest vm1: 'nonsense' is no address"),
        ({"guest_flags": ["vm1=vsock:3:1", "vm1=vsock:4:1"]}, "guest vm1 is known already"),
        ({"guest_flags": ["vm1=vsock:3:1", "vm2=vsock:3:1"]}, "its address belongs to the running guest vm1"),
        ({"guest_flags": ["vm1=dstack+vsock:3:1", "vm2=vsock:3:1"]}, "its address belongs to the running guest vm1"),
        ({"guest_flags": ["vm1=dstack+vsock:2:1"]}, "vsock:host:1 is this host"),
        ({"guest_flags": ["vm1=dstack+nonsense"]}, "--guest vm1: 'nonsense' is no address"),
        ({"guest_flags": ["vm1=dstack+dstack+vsock:3:1"]}, "--guest vm1: 'dstack+vsock:3:1' is no address"),
        ({"guest_flags": ["vm1=DSTACK+vsock:3:1"]}, "--guest vm1: 'DSTACK+vsock:3:1' is no address"),
        ({"guest_flags": ["vm1=dstack+10.0.0.1:8000"]}, "plain TCP beyond loopback"),
        ({"grpc_flags": ["192.168.0.1:9000"]}, "--grpc: 192.168.0.1:9000: plain TCP beyond loopback"),
        ({"grpc_flags": ["x"]}, "--grpc: 'x' is no address"),
        ({"http_flag": "x"}, "--http: 'x' is no address"),
    ],
)
def test_a_bad_flag_is_refused_by_name(flags: dict[str, object], place: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_setup(None, **flags)  # type: ignore[arg-type] # one flag of several kinds each
    assert place in str(caught.value)


def test_a_flag_for_a_guest_of_the_file_is_refused_because_its_pin_would_vanish(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="guest vm1 is known already"):
        read_setup(written(tmp_path, GUEST), guest_flags=["vm1=vsock:4:8000"])


def test_without_a_file_it_listens_on_a_unix_socket_and_knows_nobody() -> None:
    setup = read_setup(None)
    assert setup.listen == (UnixAddress("/run/vmm-proxy/vmm-proxy.sock"),)
    assert setup.guests == ()


def test_flags_win_over_the_file_and_add_guests(tmp_path: Path) -> None:
    path = written(tmp_path, f"[grpc]\nlisten = ['unix:/a']\n{GUEST}")
    setup = read_setup(path, grpc_flags=["127.0.0.1:0"], http_flag="off", guest_flags=["vm2=[::1]:9"])
    assert setup.listen == (TcpAddress("127.0.0.1", 0),)
    assert [(guest.id, guest.address) for guest in setup.guests] == [
        ("vm1", VsockAddress(3, 8000)),
        ("vm2", TcpAddress("::1", 9)),
    ]


@pytest.mark.parametrize("address", ["vsock:3:8000", "hvsock:/run/vm1:8000", "unix:/run/vm1", "127.0.0.1:8000", "[::1]:8000"])
def test_a_guest_with_dstacks_agent_is_written_with_its_prefix_and_is_nowhere_else(address: str) -> None:
    ours = read_setup(None, guest_flags=[f"vm1={address}"]).guests[0]
    theirs = read_setup(None, guest_flags=[f"vm1=dstack+{address}"]).guests[0]
    assert (theirs.address, theirs.written_address) == (ours.address, f"dstack+{address}")
    assert ours.written_address == address
    assert not ours.same_vm(theirs)


def test_tls_of_a_guest_with_dstacks_agent_is_refused(tmp_path: Path) -> None:
    text = "[[guest]]\nid = 'a'\naddress = 'dstack+10.0.0.1:8000'\ntls = { name = 'vm1.example' }\n"
    with pytest.raises(SettingsError, match="dstack's agent speaks no TLS"):
        read_setup(written(tmp_path, text))


def test_every_key_of_a_guest_is_kept(tmp_path: Path) -> None:
    text = GUEST + "state = 'stopped'\ninstance_id = '00FF'\ngpus = ['0000:3b:00.0', '3B:00.0']\nlabels = { 'a.b/c' = 'ä' }\n"
    (guest,) = read_setup(written(tmp_path, text)).guests
    assert (guest.running, guest.instance_id) == (False, b"\x00\xff")
    assert guest.gpus == ("0000:3b:00.0", "3B:00.0")
    assert guest.labels == {"a.b/c": "ä"}


def test_plain_tcp_beyond_loopback_is_asked_for_by_name(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("")
    text = (
        f"[grpc]\nallow_plaintext = true\nlisten = ['0.0.0.0:9000']\n[access]\ntoken_file = '{tokens}'\n"
        "[[guest]]\nid = 'a'\naddress = '10.0.0.1:1'\n"
    )
    setup = read_setup(written(tmp_path, text))
    assert setup.listen == (TcpAddress("0.0.0.0", 9000),)


def test_a_stopped_guest_may_keep_the_address_that_a_running_one_has(tmp_path: Path) -> None:
    path = written(tmp_path, GUEST + "[[guest]]\nid = 'old'\naddress = 'vsock:3:8000'\nstate = 'stopped'\n")
    assert len(read_setup(path).guests) == 2
