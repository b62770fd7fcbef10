"""From a caller's credentials to its name and its grants. The rules can be replaced while calls are in progress.

A token is used first, then a certificate, then the socket. A caller with a credential is judged by that one alone, so that root can try
out what a viewer's token sees. On the read-only socket nothing is looked at: whoever may open it is a viewer of all guests.
A known caller without a grant may do nothing (PERMISSION_DENIED). A caller without valid credentials is refused (UNAUTHENTICATED).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import grpc

from guest_transport.peers import ListenerPeer, TcpPeer, UnixPeer, VsockPeer
from vmm_proxy.errors import CallError
from vmm_proxy.policy.credentials import Credentials
from vmm_proxy.policy.roles import Caller, Grant, Role
from vmm_proxy.policy.tokens import Token, holder

Grants = tuple[Grant, ...]
ROOT_UID = 0
READ_ONLY = ListenerPeer("the read-only socket")
_READ_ONLY_CALLER = Caller(str(READ_ONLY), (Grant(Role.VIEWER),))
# Unix peers whose judgement is kept: as many as can be connected at a time. A peer is judged at each of its calls.
_KEPT_PEERS = 512


@dataclass(frozen=True, slots=True)
class AccessRules:
    """`[access]` of the configuration, parsed, and what the process knows of itself."""

    own_uid: int
    own_gid: int
    users: Mapping[int, Grants] = field(default_factory=dict)
    groups: Mapping[int, Grants] = field(default_factory=dict)
    certificates: Mapping[str, Grants] = field(default_factory=dict)
    tokens: tuple[Token, ...] = ()
    # What every Unix caller gets without being looked at; None: the kernel is asked who it is.
    unix_role: Role | None = None
    # What members of the socket's group get who have no grant of their own.
    socket_group: Role | None = Role.VIEWER
    # What callers on loopback TCP get who show nothing.
    loopback: Role | None = Role.VIEWER
    # Whether only this machine reaches the TCP listeners. Where others do, whoever comes from loopback may be one of them behind
    # a forwarder, and `loopback` is nobody's.
    loopback_only: bool = True

    def on_the_same_listeners(self, before: AccessRules) -> AccessRules:
        """These rules, as far as they can be in force on listeners that were made by `before`."""
        return replace(self, unix_role=before.unix_role, loopback_only=before.loopback_only)


class Access:
    """Judges callers by the rules in force; `version` counts the changes."""

    def __init__(self, rules: AccessRules) -> None:
        self._rules = rules
        self._judged: dict[UnixPeer, Caller] = {}
        self._subscribed: dict[object, Callable[[], None]] = {}
        self.version = 0

    def replace(self, rules: AccessRules) -> None:
        """Judge by `rules` from now on, and tell whoever subscribed."""
        self._rules = rules
        self._judged.clear()
        self.version += 1
        for changed in tuple(self._subscribed.values()):
            changed()

    @contextlib.contextmanager
    def subscribed(self, changed: Callable[[], None]) -> Iterator[None]:
        """Have `changed` called after each change of the rules, for the length of the block."""
        key = object()
        self._subscribed[key] = changed
        try:
            yield
        finally:
            del self._subscribed[key]

    def judge(self, credentials: Credentials) -> Caller:
        """Who calls; raises CallError UNAUTHENTICATED."""
        if credentials.token_sha256 is not None:
            return self._token_holder(credentials.token_sha256)
        if credentials.certificate:
            grants = _united(self._rules.certificates.get(name, ()) for name in credentials.certificate)
            return Caller(f"certificate {' '.join(credentials.certificate)}", grants)
        match credentials.peer:
            case ListenerPeer():
                return _READ_ONLY_CALLER
            case UnixPeer(uid=None):
                if self._rules.unix_role is not None:
                    return Caller("unix", (Grant(self._rules.unix_role),))
            case UnixPeer(uid=int(uid)) as peer:
                caller = self._judged.get(peer)
                if caller is None:
                    if len(self._judged) >= _KEPT_PEERS:
                        self._judged.clear()
                    caller = self._judged[peer] = Caller(str(peer), self._unix_grants(uid, {peer.gid, *peer.groups}))
                return caller
            case VsockPeer() as peer:
                return Caller(str(peer), ())
            case TcpPeer(loopback=True) as peer:
                if self._rules.loopback is not None and self._rules.loopback_only:
                    return Caller(f"loopback {peer}", (Grant(self._rules.loopback),))
        raise CallError(grpc.StatusCode.UNAUTHENTICATED, "show a client certificate, or a token as authorization: Bearer TOKEN")

    def _token_holder(self, sha256: bytes) -> Caller:
        token = holder(self._rules.tokens, sha256)
        if token is None:
            raise CallError(grpc.StatusCode.UNAUTHENTICATED, "authorization: the token is not known")
        return Caller(f"token {token.name}", (token.grant,))

    def _unix_grants(self, uid: int, gids: set[int | None]) -> Grants:
        rules = self._rules
        if uid in {ROOT_UID, rules.own_uid}:
            # They can read the proxy's memory and files anyway.
            return (Grant(Role.ADMIN),)
        if rules.unix_role is not None:
            return (Grant(rules.unix_role),)
        by_group = (grants for gid, grants in rules.groups.items() if gid in gids)
        named = _united((rules.users.get(uid, ()), *by_group))
        if not named and rules.socket_group is not None and rules.own_gid in gids:
            return (Grant(rules.socket_group),)
        return named


def _united(several: Iterable[Grants]) -> Grants:
    return tuple(grant for grants in several for grant in grants)
