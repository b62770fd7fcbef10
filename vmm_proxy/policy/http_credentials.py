"""The token that an HTTP request shows: as a bearer token, as the password of any user, or as dstack's callers do, in X-Admin-Token.

One token, and only one: a request with two would be judged by whichever is looked at first. Nothing is judged here.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

import grpc

from vmm_proxy.errors import CallError
from vmm_proxy.policy.tokens import token_sha256, valid_token

CHALLENGE = {"www-authenticate": 'Basic realm="vmm-proxy: any user, and a token as the password", charset="UTF-8", Bearer'}
_ADMIN_TOKEN = b"x-admin-token"


def shows_token(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request with `headers` shows anything."""
    return any(name in {b"authorization", _ADMIN_TOKEN} for name, _ in headers)


def shown_token_sha256(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """What is kept of the one token in `headers`; raises CallError UNAUTHENTICATED for anything else."""
    shown = [(name, value.decode("latin-1")) for name, value in headers if name in {b"authorization", _ADMIN_TOKEN}]
    if len(shown) == 1:
        name, value = shown[0]
        token = value.strip() if name == _ADMIN_TOKEN else _of_authorization(value)
        if token is not None and valid_token(token):
            return token_sha256(token)
    text = "show one token: authorization: Bearer TOKEN, or any user with the token as the password"
    raise CallError(grpc.StatusCode.UNAUTHENTICATED, text)


def _of_authorization(authorization: str) -> str | None:
    """The token in an Authorization header (RFC 6750; RFC 7617: the password)."""
    scheme, _, rest = authorization.partition(" ")
    match scheme.lower():
        case "bearer":
            return rest.strip()
        case "basic":
            try:
                return base64.b64decode(rest.strip(), validate=True).decode("ascii").partition(":")[2]
            except ValueError:
                # Not base64 (binascii.Error), or letters beyond ASCII on either side of it.
                return None
    return None
