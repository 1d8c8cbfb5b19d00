"""Bearer tokens: a principal and its grants, signed with the service's secret.

A token is a JSON Web Token (RFC 7519) with one fixed algorithm, HMAC-SHA-256. Whoever holds one is
the principal until it expires; tokens are therefore short-lived, except the operator's own.
"""

import secrets
import time
from typing import Any, Final

import jwt

from blackboard.core.path import check_name
from blackboard.errors import InvalidRequest, LimitExceeded, Rejected, Unauthenticated
from blackboard.service.access import Grant, Principal, Right, check_grants
from blackboard.types import Milliseconds
from blackboard.wire.parts import TOKEN_BYTES_MAX

AUDIENCE: Final = "blackboard"
SECRET_BYTES_MIN: Final = 32
"""The output of SHA-256; a shorter key would be the weakest part (RFC 7518, section 3.2)."""
_ALGORITHMS: Final = ["HS256"]
_REQUIRED: Final = ["sub", "aud", "exp", "iat"]


def new_secret() -> str:
    """A fresh secret: 32 random bytes in hexadecimal."""
    return secrets.token_hex(SECRET_BYTES_MIN)


def check_secret(secret: str) -> str:
    """Return `secret` if it is long enough, else InvalidRequest (which does not show it)."""
    if len(secret.encode()) < SECRET_BYTES_MIN:
        reason = f"must have at least {SECRET_BYTES_MIN} bytes"
        raise InvalidRequest(field="secret", reason=reason)
    return secret


def issue(secret: str, principal: Principal, ttl_ms: Milliseconds) -> str:
    """A token for `principal` that is valid for `ttl_ms` from now.

    Errors: InvalidRequest for a name or pattern that is none, or a secret that is too short;
    LimitExceeded when it would have more than TOKEN_BYTES_MAX bytes: use fewer grants.
    """
    now_s = int(time.time())
    claims: dict[str, Any] = {
        "sub": check_name(principal.name, "principal"),
        "aud": AUDIENCE,
        "iat": now_s,
        "exp": now_s + max(ttl_ms // 1000, 1),
        "grants": [[g.pattern, sorted(g.rights)] for g in check_grants(principal.grants)],
        "boards": sorted(principal.boards),
        "acts_for_any": principal.acts_for_any,
    }
    token = jwt.encode(claims, check_secret(secret), algorithm=_ALGORITHMS[0])
    if len(token) > TOKEN_BYTES_MAX:
        raise LimitExceeded("TOKEN_BYTES_MAX", len(token), TOKEN_BYTES_MAX, "grants")
    return token


def verify(secret: str, token: str) -> Principal:
    """The principal that `token` names. Errors: Unauthenticated for anything else than our token.

    The reason never repeats the token, nor says more than its owner could know.
    """
    if len(token) > TOKEN_BYTES_MAX:
        raise Unauthenticated(reason=f"the token has more than {TOKEN_BYTES_MAX} bytes")
    try:
        options: Any = {"require": _REQUIRED}
        claims = jwt.decode(
            token, secret, algorithms=_ALGORITHMS, audience=AUDIENCE, options=options
        )
    except jwt.ExpiredSignatureError as error:
        raise Unauthenticated(reason="the token has expired") from error
    except (jwt.InvalidTokenError, ValueError) as error:
        raise Unauthenticated(reason="the token is not one of this service") from error
    return _principal(claims)


def _principal(claims: dict[str, Any]) -> Principal:
    """Signed by us, but perhaps by another version: what is not understood is refused."""
    try:
        grants = (Grant(pattern, _rights(rights)) for pattern, rights in claims["grants"])
        boards = frozenset(check_name(board, "board") for board in claims["boards"])
        return Principal(
            check_name(claims["sub"], "principal"),
            check_grants(grants),
            boards,
            int(claims["exp"]) * 1000,
            claims["acts_for_any"] is True,
        )
    except (KeyError, TypeError, ValueError, AttributeError, Rejected) as error:
        raise Unauthenticated(reason="the token is of another version") from error


def _rights(names: list[str]) -> frozenset[Right]:
    return frozenset(Right(name) for name in names)
