"""From what a caller shows to what it was granted."""

from __future__ import annotations

import grp
import os
import tracemalloc
from pathlib import Path

import grpc
import pytest

from guest_transport.addresses import VsockAddress
from guest_transport.errors import SettingsError
from guest_transport.peers import TcpPeer, UnixPeer, VsockPeer
from tests.policy.callers import rules, secret, token
from vmm_proxy.config import read_setup
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.errors import CallError
from vmm_proxy.policy.access import Access
from vmm_proxy.policy.credentials import Credentials
from vmm_proxy.policy.roles import Caller, Grant, Role
from vmm_proxy.policy.tokens import token_sha256

STRANGER = UnixPeer(1, 65534, 65533, (65532,))
REMOTE = TcpPeer("192.0.2.7", 5)
LOCAL = TcpPeer("127.0.0.1", 5)
VIEW, OPERATE, ADMIN = (Grant(role) for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN))


def unauthenticated(access: Access, shown: Credentials) -> str:
    with pytest.raises(CallError) as refused:
        access.judge(shown)
    assert refused.value.code is grpc.StatusCode.UNAUTHENTICATED
    return refused.value.text


def test_by_default_root_and_the_proxys_user_are_admins_its_group_looks_and_other_users_may_nothing() -> None:
    access = Access(rules(own_uid=990, own_gid=991))
    for uid in (0, 990):
        assert access.judge(Credentials(UnixPeer(1, uid, 65533))).role is Role.ADMIN
    assert access.judge(Credentials(UnixPeer(1, 1000, 991))).grants == (VIEW,)
    assert access.judge(Credentials(UnixPeer(1, 1000, 1000, (5, 991)))).grants == (VIEW,)
    assert access.judge(Credentials(STRANGER)) == Caller("unix uid 65534 gid 65533 pid 1", ())
    assert access.judge(Credentials(LOCAL)).grants == (VIEW,)
    assert access.judge(Credentials(VsockPeer(3, 9))).grants == ()
    unauthenticated(access, Credentials(REMOTE))
    unauthenticated(access, Credentials(UnixPeer()))


def test_grants_of_user_and_groups_add_up_and_replace_what_the_sockets_group_would_get() -> None:
    blue = Grant(Role.OPERATOR, {"tenant": "blue"})
    access = Access(rules(own_uid=990, own_gid=65532, users={65534: (blue,)}, groups={65533: (VIEW,), 7: (ADMIN,)}))
    assert access.judge(Credentials(STRANGER)).grants == (blue, VIEW)
    assert access.judge(Credentials(UnixPeer(1, 1000, 65532))).grants == (VIEW,)
    only_blue = Access(rules(own_uid=990, own_gid=65532, users={65534: (blue,)}))
    assert only_blue.judge(Credentials(STRANGER)).grants == (blue,), "membership in the socket's group adds nothing to a grant"


def test_a_number_as_large_as_a_uid_can_be_is_nobodys_grant_but_its_own() -> None:
    access = Access(rules(own_uid=990, own_gid=991, users={0xFFFFFFFE: (ADMIN,)}))
    assert access.judge(Credentials(UnixPeer(1, 0xFFFFFFFE, 1))).role is Role.ADMIN
    assert access.judge(Credentials(UnixPeer(1, 1, 1))).role is None


def test_a_token_speaks_before_a_certificate_and_that_before_the_socket() -> None:
    access = Access(rules(tokens=(token("t", Role.VIEWER),), certificates={"dns:ops": (OPERATE,)}))
    root = UnixPeer(1, 0, 0)
    digest = token_sha256(secret("t"))
    assert access.judge(Credentials(root, ("dns:ops",), digest)) == Caller("token t", (VIEW,))
    assert access.judge(Credentials(root, ("dns:ops",))) == Caller("certificate dns:ops", (OPERATE,))
    unauthenticated(access, Credentials(root, ("dns:ops",), token_sha256(secret("other"))))


def test_any_of_a_certificates_names_counts_and_its_kind_must_be_the_same() -> None:
    access = Access(rules(certificates={"dns:ops": (OPERATE,), "uri:spiffe://a/b": (VIEW,)}))
    assert access.judge(Credentials(REMOTE, ("uri:spiffe://a/b", "dns:ops"))).grants == (VIEW, OPERATE)
    assert access.judge(Credentials(REMOTE, ("email:ops", "dns:OPS", "dns:ops.example"))).grants == ()


def test_a_fixed_role_for_the_socket_is_everybodys_whom_the_file_system_lets_in() -> None:
    access = Access(rules(own_uid=990, unix_role=Role.OPERATOR))
    assert access.judge(Credentials(UnixPeer())).grants == (OPERATE,)
    assert access.judge(Credentials(STRANGER)).grants == (OPERATE,)
    unauthenticated(access, Credentials(REMOTE))


def test_loopback_counts_for_nothing_where_a_listener_is_open_to_others() -> None:
    unauthenticated(Access(rules(loopback_only=False)), Credentials(LOCAL))
    unauthenticated(Access(rules(loopback=None)), Credentials(LOCAL))


def test_rules_that_are_read_again_claim_nothing_about_listeners_that_are_still_the_old_ones() -> None:
    before, after = rules(loopback_only=False, unix_role=Role.VIEWER), rules(loopback=Role.OPERATOR, socket_group=None)
    access = Access(before)
    access.replace(after.on_the_same_listeners(before))
    unauthenticated(access, Credentials(LOCAL))
    assert access.judge(Credentials(UnixPeer())).grants == (VIEW,)


def test_a_caller_who_was_judged_before_is_judged_anew_when_the_rules_change() -> None:
    before, after = rules(own_uid=990, own_gid=991), rules(own_uid=990, own_gid=991, users={65534: (OPERATE,)})
    access = Access(before)
    for in_force, grants in ((before, ()), (after, (OPERATE,)), (before, ())):
        access.replace(in_force)
        assert [access.judge(Credentials(STRANGER)).grants for _ in range(2)] == [grants, grants]


def test_two_processes_of_one_user_are_judged_by_their_own_groups() -> None:
    access = Access(rules(own_uid=990, own_gid=991, groups={7: (OPERATE,)}))
    granted = {
        peer: access.judge(Credentials(peer)).grants
        for peer in (UnixPeer(1, 1000, 7), UnixPeer(1, 1000, 991), UnixPeer(1, 1000, 5))
    }
    assert list(granted.values()) == [(OPERATE,), (VIEW,), ()]
    assert access.judge(Credentials(UnixPeer(2, 1000, 5, (7,)))).grants == (OPERATE,)


def test_callers_that_come_and_go_leave_no_memory() -> None:
    access = Access(rules(own_uid=990, own_gid=991))
    tracemalloc.start()
    for pid in range(10_000):
        access.judge(Credentials(UnixPeer(pid, 1000, 991)))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1_000_000


def test_scopes_select_by_all_their_labels() -> None:
    caller = Caller("x", (Grant(Role.VIEWER, {"rack": "r7"}), Grant(Role.OPERATOR, {"rack": "r7", "tenant": "blue"})))

    def guest(**labels: str) -> GuestEntry:
        return GuestEntry("vm", VsockAddress(3, 1), labels)

    assert caller.sees(guest(rack="r7", tenant="red"))
    assert not caller.may(Role.OPERATOR, guest(rack="r7", tenant="red"))
    assert caller.may(Role.OPERATOR, guest(rack="r7", tenant="blue"))
    assert not caller.sees(guest(rack="r8", tenant="blue"))
    assert not caller.sees(guest())
    assert not Caller("nobody", ()).sees(guest(rack="r7"))


def read(folder: Path, text: str) -> Access:
    path = folder / "proxy.toml"
    path.write_text(text)
    return Access(read_setup(path).access)


def test_the_configuration_names_users_groups_and_certificates(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getegid()).gr_name
    access = read(
        tmp_path,
        "[[access.grant]]\nrole = 'operator'\nunix_user = 'nobody'\nguests = { tenant = 'blue' }\n"
        "[[access.grant]]\nrole = 'viewer'\nunix_user = 65534\n"
        f"[[access.grant]]\nrole = 'admin'\nunix_group = '{group}'\n"
        "[[access.grant]]\nrole = 'admin'\ncertificate = 'dns:vmm.example'\n",
    )
    assert access.judge(Credentials(UnixPeer(1, 65534, 65534))).grants == (Grant(Role.OPERATOR, {"tenant": "blue"}), VIEW)
    assert access.judge(Credentials(UnixPeer(1, 4321, os.getegid()))).grants == (ADMIN,)
    assert access.judge(Credentials(REMOTE, ("dns:vmm.example",))).grants == (ADMIN,)


@pytest.mark.parametrize(
    ("listen", "more", "role"),
    [
        ("['127.0.0.1:1', 'unix:/a']", "", Role.VIEWER),
        ("['127.0.0.1:1', '0.0.0.0:1']", "token_file = '{tokens}'\n", None),
        ("['127.0.0.1:1']", "loopback = 'none'\n", None),
        ("['127.0.0.1:1']", "loopback = 'operator'\n", Role.OPERATOR),
    ],
)
def test_callers_on_loopback_have_a_role_only_where_nobody_else_can_come(
    tmp_path: Path, listen: str, more: str, role: Role | None
) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("")
    access = read(tmp_path, f"[grpc]\nallow_plaintext = true\nlisten = {listen}\n[access]\n{more.format(tokens=tokens)}")
    if role is None:
        unauthenticated(access, Credentials(LOCAL))
    else:
        assert access.judge(Credentials(LOCAL)).role is role


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[access]\nunix = 'anybody'\n", "access.unix"),
        ("[access]\nloopback = 'root'\n", "access.loopback"),
        ("[access]\ntoken_file = 'tokens'\n", "access.token_file: must be an absolute path"),
        ("[access]\ntoken_file = '/no/such/file'\n", "/no/such/file"),
        ("[[access.grant]]\nrole = 'viewer'\n", "access.grant[0]: needs exactly one of"),
        ("[[access.grant]]\nrole = 'viewer'\nunix_user = 'nobody'\ncertificate = 'dns:a'\n", "access.grant[0]: needs exactly"),
        ("[[access.grant]]\nrole = 'viewer'\nunix_user = 'no-such-user'\n", "access.grant[0].unix_user: 'no-such-user' is not"),
        ("[[access.grant]]\nrole = 'viewer'\nunix_group = 'no-such-group'\n", "access.grant[0].unix_group"),
        ("[[access.grant]]\nrole = 'viewer'\nunix_user = -1\n", "access.grant[0].unix_user: must be from 0"),
        ("[[access.grant]]\nrole = 'viewer'\nunix_user = true\n", "access.grant[0].unix_user"),
        ("[[access.grant]]\nrole = 'viewer'\ncertificate = 'ops.example'\n", "access.grant[0].certificate: must be a subject"),
        ("[[access.grant]]\nrole = 'admin'\nunix_user = 1\nguests = { a = 'b' }\n", "access.grant[0].guests: an admin keeps"),
        ("[[access.grant]]\nrole = 'viewer'\nunix_user = 1\nguests = { a = 1 }\n", "access.grant[0].guests"),
        ("[[access.grants]]\n", "access.grants: unknown key"),
        (
            "[grpc]\nallow_plaintext = true\nlisten = ['0.0.0.0:1']\n",
            "grpc.listen: 0.0.0.0:1: nobody could be let in; set tls.client_authorities or access.token_file",
        ),
        ("[tls]\ncertificate = '/a'\n", "tls.key: missing"),
        ("[tls]\ncertificate = 'a'\nkey = '/b'\n", "tls.certificate: must be an absolute path"),
        ("[tls]\ncertificate = '/no/a'\nkey = '/no/b'\n", "tls: /no/b: cannot be read"),
        ("[guest_tls]\nauthorities = '/no/a'\n", "guest_tls: /no/a: cannot be read"),
        ("[guest_tls]\ncertificate = '/no/a'\n", "guest_tls: a client certificate needs its key"),
        ("[guest_tls]\nname = 'a\\tb'\n".replace("'a\\tb'", '"a\\tb"'), "guest_tls.name"),
        ("[[guest]]\nid = 'a'\naddress = 'vsock:3:1'\n[guest.tls]\n", "guest[0].tls: only a guest at HOST:PORT speaks TLS"),
        ("[audit]\nfile = 'audit'\n", "audit.file: must be an absolute path"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read(tmp_path, text)
    assert place in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_with_tls_towards_them_guests_beyond_loopback_need_no_plaintext(tmp_path: Path) -> None:
    path = tmp_path / "proxy.toml"
    path.write_text("[guest_tls]\n[[guest]]\nid = 'a'\naddress = '192.0.2.1:1'\n")
    assert read_setup(path).guest_tls is not None
    path.write_text("[[guest]]\nid = 'a'\naddress = '192.0.2.1:1'\n[guest.tls]\nname = 'vm.example'\n")
    (guest,) = read_setup(path).guests
    assert guest.tls is not None
    assert guest.tls.name == "vm.example"
