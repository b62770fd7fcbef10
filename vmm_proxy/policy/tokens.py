"""Bearer tokens: a file of hashes, and the comparison of a caller's token with them.

The file holds SHA-256 and no salt, because a token is long and random: nobody guesses 128 bits, with or without a rainbow table.
That is why a short one is refused where it is hashed. Every entry is compared in constant time, also after a match, so that the
time of an answer tells nothing. Rejected: scrypt and its kind (made for passwords; each call would cost 50 ms of CPU).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from guest_transport.errors import SettingsError
from guest_transport.settings.read import read_settings
from vmm_proxy.directory.labels import check_labels
from vmm_proxy.policy.roles import ROLES, Grant, Role, RoleName

# 32 characters hold 128 random bits even as hex; nobody's password is that long.
TOKEN_RULE = "32 to 512 printable ASCII characters without spaces"  # noqa: S105 - a rule in words
_TOKEN = re.compile(r"[!-~]{32,512}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
# Every call with a token is compared with each: a thousand take 0.2 ms (not measured on a slow machine).
TOKENS_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Token:
    """Whose token has this SHA-256, and what it grants."""

    name: str
    sha256: bytes
    grant: Grant


class TokenSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[token]]` in the token file."""

    # Stands in the audit log in place of the token.
    name: str
    # As `vmm-proxy hash-token` prints it.
    hash: str
    # What the holder may do, a RoleName (docs/access.md); checked by _token, because what stands here by mistake may be the token, and is
    # not to be quoted.
    role: str
    # Labels that a guest must have for the token to be about it; without any it is about all guests.
    guests: dict[str, str] = {}


class TokenFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole token file."""

    # The tokens that are known.
    token: tuple[TokenSettings, ...] = ()


def valid_token(text: str) -> bool:
    """Whether `text` keeps TOKEN_RULE."""
    return _TOKEN.fullmatch(text) is not None


def token_sha256(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("ascii")).digest()


def token_hash(token: str) -> str:
    """The same, as it stands in the token file."""
    return f"sha256:{token_sha256(token).hex()}"


def holder(tokens: Sequence[Token], sha256: bytes) -> Token | None:
    """Whose token has this SHA-256; takes the same time whoever it is."""
    found = None
    for token in tokens:
        if hmac.compare_digest(token.sha256, sha256):
            found = token
    return found


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens in the file at `path`; raises SettingsError, also when somebody else may write to it. Blocks."""
    tokens = read_settings(path, TokenFile).token
    _require_own(path)
    if len(tokens) > TOKENS_LIMIT:
        raise SettingsError(f"{path}: at most {TOKENS_LIMIT} tokens are allowed")
    parsed = tuple(_token(settings, f"{path}: token[{number}]") for number, settings in enumerate(tokens))
    for what, values in (("name", [token.name for token in parsed]), ("hash", [token.sha256 for token in parsed])):
        if len(set(values)) < len(values):
            raise SettingsError(f"{path}: one {what} stands there twice; each token has its own")
    return parsed


def _token(settings: TokenSettings, where: str) -> Token:
    if not _NAME.fullmatch(settings.name):
        raise SettingsError(f"{where}.name: must be 1 to 64 characters of [A-Za-z0-9._@-]")
    if not _HASH.fullmatch(settings.hash):
        raise SettingsError(f"{where}.hash: must be what vmm-proxy hash-token prints: sha256: and 64 hex digits")
    role = next((name for name in ROLES if name == settings.role), None)
    if role is None:
        raise SettingsError(f"{where}.role: must be one of {', '.join(ROLES)}")
    return Token(
        settings.name,
        bytes.fromhex(settings.hash.removeprefix("sha256:")),
        grant_of(role, settings.guests, where),
    )


def grant_of(role: RoleName, guests: dict[str, str], where: str) -> Grant:
    """The grant of `role` about `guests`; raises SettingsError."""
    if ROLES[role] is Role.ADMIN and guests:
        raise SettingsError(f"{where}.guests: an admin keeps the whole directory; give viewer or operator for some guests only")
    return Grant(ROLES[role], check_labels(guests, f"{where}.guests"))


def _require_own(path: Path) -> None:
    found = path.stat()
    if found.st_uid not in {0, os.geteuid()}:
        raise SettingsError(f"{path}: belongs to user {found.st_uid}; it must belong to root or to the proxy's own user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SettingsError(f"{path}: others may write to it; chmod go-w it")
