"""`[access]` of the configuration, and the rules that it makes.

User and group names are looked up here, once: a rule about a name that does not exist, or a grant that names nobody, is refused,
because it would be silently without effect. Looking up and reading the token file may block.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from guest_transport.errors import SettingsError
from vmm_proxy.policy.access import AccessRules
from vmm_proxy.policy.roles import ROLES, Grant, Role, RoleName
from vmm_proxy.policy.tokens import Token, grant_of, read_tokens

DefaultRole = Literal["none", "viewer", "operator", "admin"]
K = TypeVar("K")

_CERTIFICATE = re.compile(r"(dns|uri|email|ip):[!-~]{1,512}")
# uid_t and gid_t have 32 bits, and the last is "no user".
_ID_LIMIT = 0xFFFFFFFE


class GrantSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[access.grant]]`: a role for exactly one of user, group and certificate."""

    # What the caller may do (docs/access.md).
    role: RoleName
    # A local user by name or number, who calls on the Unix socket.
    unix_user: str | int | None = None
    # A local group by name or number.
    unix_group: str | int | None = None
    # A subject alternative name of a client certificate, with its kind in front: dns:, uri:, email: or ip:.
    certificate: str | None = None
    # Labels that a guest must have for the grant to be about it; without any it is about all guests.
    guests: dict[str, str] = {}


class AccessSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[access]`: who may call what."""

    # Who has which role; several that fit one caller add up.
    grant: tuple[GrantSettings, ...] = ()
    # File with the hashes of bearer tokens, see `vmm-proxy hash-token`.
    token_file: str | None = None
    # How callers on Unix sockets get their role. "peer": the kernel is asked who each is. A role: everybody whom the file system lets in
    # has it, and a call is some 40 µs faster (docs/decisions/peer-identity.md).
    unix: Literal["peer", "viewer", "operator", "admin"] = "peer"
    # Role of the members of the group that the proxy runs in, and its socket belongs to: they were let in to look.
    socket_group: DefaultRole = "viewer"
    # Role of callers on loopback TCP that show nothing: any local user, so no more than looking.
    loopback: DefaultRole = "viewer"


def access_rules(settings: AccessSettings, where: str, *, loopback_only: bool) -> AccessRules:
    """The rules of `settings`; raises SettingsError. `loopback_only` says that only this machine reaches the TCP listeners."""
    users, groups = defaultdict[int, list[Grant]](list), defaultdict[int, list[Grant]](list)
    certificates = defaultdict[str, list[Grant]](list)
    for number, grant in enumerate(settings.grant):
        place = f"{where}: access.grant[{number}]"
        given = grant_of(grant.role, grant.guests, place)
        match grant:
            case GrantSettings(unix_user=str() | int() as user, unix_group=None, certificate=None):
                users[_id(user, lambda name: pwd.getpwnam(name).pw_uid, f"{place}.unix_user")].append(given)
            case GrantSettings(unix_user=None, unix_group=str() | int() as group, certificate=None):
                groups[group_id(group, f"{place}.unix_group")].append(given)
            case GrantSettings(unix_user=None, unix_group=None, certificate=str() as name):
                certificates[_certificate(name, f"{place}.certificate")].append(given)
            case _:
                raise SettingsError(f"{place}: needs exactly one of unix_user, unix_group and certificate")
    return AccessRules(
        own_uid=os.geteuid(),
        own_gid=os.getegid(),
        users=_frozen(users),
        groups=_frozen(groups),
        certificates=_frozen(certificates),
        tokens=_tokens(settings.token_file, f"{where}: access.token_file") if settings.token_file is not None else (),
        unix_role=None if settings.unix == "peer" else ROLES[settings.unix],
        socket_group=_default(settings.socket_group),
        loopback=_default(settings.loopback),
        loopback_only=loopback_only,
    )


def _default(name: DefaultRole) -> Role | None:
    return None if name == "none" else ROLES[name]


def _tokens(text: str, where: str) -> tuple[Token, ...]:
    path = Path(text)
    if not path.is_absolute():
        raise SettingsError(f"{where}: must be an absolute path, not {text[:120]!a}")
    try:
        return read_tokens(path)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error


def _certificate(name: str, where: str) -> str:
    if not _CERTIFICATE.fullmatch(name):
        raise SettingsError(f"{where}: must be a subject alternative name such as dns:ops.example, uri:, email: or ip:")
    return name


def group_id(group: str | int, where: str) -> int:
    """The gid of a local group by name or number; raises SettingsError."""
    return _id(group, lambda name: grp.getgrnam(name).gr_gid, where)


def _id(subject: str | int, look_up: Callable[[str], int], where: str) -> int:
    if isinstance(subject, int):
        if not 0 <= subject <= _ID_LIMIT:
            raise SettingsError(f"{where}: must be from 0 to {_ID_LIMIT}")
        return subject
    try:
        return look_up(subject)
    except (KeyError, ValueError) as error:
        raise SettingsError(f"{where}: {subject[:120]!a} is not known on this host") from error


def _frozen(grants: Mapping[K, list[Grant]]) -> dict[K, tuple[Grant, ...]]:
    return {subject: tuple(given) for subject, given in grants.items()}
