"""Bearer tokens: a principal and its grants, signed with a key of the service.

A token is a JSON Web Token (RFC 7519) with one fixed algorithm, HMAC-SHA-256. Its holder acts as
the principal until it expires or is revoked; tokens are therefore short-lived, except the
operator's own.

A secret holds one key a line: the first signs, the others still verify. The token names its key
(`kid`), so keys can be rotated without interrupting access.

The holder of a token can narrow it for a sub-agent without contacting the service. Its signature is
not passed on: it becomes the key that signs the narrowing, and so on. This is the chain of a
macaroon (Birgisson et al., NDSS 2014): to remove a link, the holder would need a signature that it
never saw.

    header.claims.signature
    header.claims~narrowing~narrowing~signature
"""

import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import jwt

from blackboard.core.access import (
    AccessGrant,
    Credential,
    Narrowing,
    Principal,
    Right,
    check_grants,
    narrowed,
)
from blackboard.core.path import check_name
from blackboard.errors import InvalidRequest, LimitExceeded, Rejected, Unauthenticated
from blackboard.limits import NARROWINGS_MAX
from blackboard.units import Milliseconds
from blackboard.wire.methods import TOKEN_BYTES_MAX

AUDIENCE: Final = "blackboard"
SECRET_BYTES_MIN: Final = 32
"""The output of SHA-256; a shorter key would be the weakest part (RFC 7518, section 3.2)."""
_ALGORITHMS: Final = ["HS256"]
_REQUIRED: Final = ["sub", "aud", "exp", "iat", "jti"]
_CLAIMS: Final = frozenset([*_REQUIRED, "nbf", "grants", "boards", "acts_for_any", "by"])
_ISSUER_CLAIMS: Final = frozenset(["name", "sub", "jti", "iat", "by"])
_LINK_CLAIMS: Final = frozenset(["jti", "sub", "grants", "boards", "exp"])
_LINK: Final = "~"
_ID_BYTES: Final = 12
_LINK_ID_BYTES: Final = 6
"""Bytes of the id of a narrowing: it is no secret, and only must not be that of another one."""
_LINK_ID: Final = re.compile(r"[A-Za-z0-9_-]{8}|[A-Za-z0-9_-]{12}")
"""The id of a narrowing, in base64url; the client for JavaScript makes longer ones. The holder of a
token chooses it, so it must not be able to be the id of a token that a service issued."""
_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{16}}|{_LINK_ID.pattern}")
"""Either id."""


def new_secret() -> str:
    """A fresh secret with one key: 32 random bytes in hexadecimal."""
    return secrets.token_hex(SECRET_BYTES_MIN)


def check_secret(secret: str) -> str:
    """Return `secret` if each key is long enough and printable, else InvalidRequest (which does not
    show it).

    A file that a crash filled with zeros would otherwise be a secret that everybody knows.
    """
    keys = secret.splitlines()
    if not keys or any(len(key.encode()) < SECRET_BYTES_MIN for key in keys):
        reason = f"each key, one a line, must have at least {SECRET_BYTES_MIN} bytes"
        raise InvalidRequest(field="secret", reason=reason)
    if not all(key.isprintable() for key in keys):
        reason = "it contains characters that cannot be printed: the file may be damaged"
        raise InvalidRequest(field="secret", reason=reason)
    return secret


def key_id(key: str) -> str:
    """The id of a key, which reveals nothing about it."""
    return hashlib.sha256(b"blackboard key\0" + key.encode()).hexdigest()[:16]


def issue(
    secret: str,
    principal: Principal,
    ttl_ms: Milliseconds,
    *,
    audience: str = AUDIENCE,
    issuer: Principal | None = None,
) -> str:
    """A token for `principal` that is valid for `ttl_ms` from now at services of `audience`.

    With `issuer`, it is revoked together with that principal's token, and expires with it at the
    latest: the record of a revocation is kept until the revoked token would have expired.
    Errors: InvalidRequest for an invalid name or pattern, or a secret that is too short;
    LimitExceeded when it would have more than TOKEN_BYTES_MAX bytes: use fewer grants.
    """
    now_s = int(time.time())
    end_s = now_s + max(ttl_ms // 1000, 1)
    if issuer is not None and issuer.expires_at_ms is not None:
        end_s = min(end_s, issuer.expires_at_ms // 1000)
    claims: dict[str, Any] = {
        "sub": check_name(principal.name, "principal"),
        "aud": audience,
        "jti": secrets.token_urlsafe(_ID_BYTES),
        "iat": now_s,
        "exp": end_s,
        "grants": _written(check_grants(principal.grants)),
        "boards": sorted(principal.boards),
        "acts_for_any": principal.acts_for_any,
    }
    if issuer is not None and issuer.credential is not None:
        claims["by"] = _written_issuer(issuer, issuer.credential)
    key = check_secret(secret).splitlines()[0]
    headers = {"kid": key_id(key)}
    return _bounded(jwt.encode(claims, key, algorithm=_ALGORITHMS[0], headers=headers))


def attenuate(token: str, to: Narrowing) -> str:
    """A token with no more than `to` of what `token` allows. Nothing but `token` is needed.

    Errors: Unauthenticated for an invalid token; InvalidRequest when `to` is wider than `token`;
    LimitExceeded above NARROWINGS_MAX links or TOKEN_BYTES_MAX bytes.
    """
    signed, links, signature = _taken_apart(token)
    if len(links) >= NARROWINGS_MAX:
        raise LimitExceeded("NARROWINGS_MAX", len(links) + 1, NARROWINGS_MAX)
    holder = _narrowed_by(_principal(_unpacked(signed.split(".")[1])), links)
    # Only for its error: the service would refuse a wider token, but not before it is used.
    narrowed(holder, to)
    link: dict[str, Any] = {"jti": secrets.token_urlsafe(_LINK_ID_BYTES)}
    if to.name is not None:
        link["sub"] = to.name
    if to.grants is not None:
        link["grants"] = _written(to.grants)
    if to.boards is not None:
        link["boards"] = sorted(to.boards)
    if to.expires_at_ms is not None:
        link["exp"] = to.expires_at_ms // 1000
    text = _packed(json.dumps(link, separators=(",", ":")).encode())
    last = _signed_by(signature, text)
    return _bounded(_LINK.join([signed, *links, text, _packed(last)]))


def verify(secret: str, token: str, *, audience: str = AUDIENCE) -> Principal:
    """The principal that `token` names. Errors: Unauthenticated for anything but a valid token of
    this service.

    The reason never contains the token, nor anything that its owner could not know.
    """
    if len(token) > TOKEN_BYTES_MAX:
        raise Unauthenticated(reason=f"the token has more than {TOKEN_BYTES_MAX} bytes")
    try:
        signed, links, signature = _taken_apart(token)
        key = _key_of(secret, signed)
        expected = own = _signed_by(key.encode(), signed)
        for link in links:
            expected = _signed_by(expected, link)
        if len(links) > NARROWINGS_MAX or not hmac.compare_digest(expected, signature):
            raise Unauthenticated(reason="the token is not one of this service")
        options: Any = {"require": _REQUIRED}
        # The library checks time and audience. In place of the signature that was not passed on it
        # gets the one computed above, which the comparison has proved.
        claims = jwt.decode(
            f"{signed}.{_packed(own)}",
            key,
            algorithms=_ALGORITHMS,
            audience=audience,
            options=options,
        )
    except jwt.ExpiredSignatureError as error:
        raise Unauthenticated(reason="the token has expired") from error
    except jwt.ImmatureSignatureError as error:
        reason = "the token was issued in the future: the service's clock is behind or was set back"
        raise Unauthenticated(reason=reason) from error
    except (jwt.InvalidTokenError, ValueError) as error:
        raise Unauthenticated(reason="the token is not one of this service") from error
    # The library knows when the token ends, but not when its narrowings do.
    return _in_time(_narrowed_by(_principal(claims), links))


def unverified(token: str) -> Principal:
    """The unverified content of a token: only its service can verify it.

    Errors: Unauthenticated when it is not a token.
    """
    signed, links, _ = _taken_apart(token)
    return _narrowed_by(_principal(_unpacked(signed.split(".")[1])), links)


def is_id(text: str) -> bool:
    """Whether `text` can be the id of a token that `issue` or `attenuate` made."""
    return _ID.fullmatch(text) is not None


def _in_time(principal: Principal) -> Principal:
    if principal.expires_at_ms is not None and principal.expires_at_ms <= time.time() * 1000:
        raise Unauthenticated(reason="the token has expired")
    return principal


# --- the chain ------------------------------------------------------------------------------------


def _taken_apart(token: str) -> tuple[str, list[str], bytes]:
    """The part that the service signed, the narrowings, and the last signature. Errors:
    Unauthenticated."""
    signed, *links = token.split(_LINK)
    if links:
        *links, signature = links
    else:
        signed, _, signature = token.rpartition(".")
    try:
        if signed.count(".") != 1 or not token.isascii():
            raise ValueError("not two parts")
        return signed, links, _bytes_of(signature)
    except ValueError as error:
        raise Unauthenticated(reason="the token is not one of this service") from error


def _key_of(secret: str, signed: str) -> str:
    """The key that a token names. Errors: Unauthenticated; ValueError."""
    wanted = _unpacked(signed.split(".")[0]).get("kid")
    for key in secret.splitlines():
        if key_id(key) == wanted:
            return key
    raise Unauthenticated(reason="the token is not one of this service")


def _signed_by(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


def _narrowed_by(principal: Principal, links: list[str]) -> Principal:
    """Errors: Unauthenticated when a link is malformed, or widens the rights before it."""
    for text in links:
        link = _known(_unpacked(text), _LINK_CLAIMS)
        try:
            end_s = link.get("exp")
            to = Narrowing(
                link.get("sub"),
                _read(link["grants"]) if "grants" in link else None,
                _boards(link["boards"]) if "boards" in link else None,
                None if end_s is None else int(end_s) * 1000,
            )
            assert principal.credential is not None, "it was read from a token"
            credential = principal.credential
            own = _own_id(link["jti"], credential)
            credential = replace(credential, ids=(*credential.ids, own))
            principal = replace(narrowed(principal, to), credential=credential)
        except _DAMAGE as error:
            raise Unauthenticated(reason="the token is of another version") from error
    return principal


def _own_id(name: Any, above: Credential) -> str:
    """The id of a narrowing of a token. Errors: ValueError for one that may be another token's: a
    token may be revoked by its holder, by the id that it names."""
    if type(name) is not str or not _LINK_ID.fullmatch(name) or name in _ids_above(above):
        raise ValueError("no id of its own")
    return name


def _ids_above(credential: Credential) -> set[str]:
    """The ids of a token, and of those on which it depends."""
    issuer = credential.issuer
    if issuer is None or issuer.credential is None:
        return set(credential.ids)
    return {*credential.ids, *_ids_above(issuer.credential)}


def _bounded(token: str) -> str:
    if len(token) > TOKEN_BYTES_MAX:
        raise LimitExceeded("TOKEN_BYTES_MAX", len(token), TOKEN_BYTES_MAX, "grants")
    return token


# --- the claims -----------------------------------------------------------------------------------

_DAMAGE: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError, Rejected)


def _principal(claims: Mapping[str, Any]) -> Principal:
    """The claims are signed by us, but maybe by another version: what is not understood is
    refused."""
    _known(claims, _CLAIMS)
    try:
        subject = check_name(claims["sub"], "principal")
        return Principal(
            subject,
            check_grants(_read(claims["grants"])),
            _boards(claims["boards"]),
            int(claims["exp"]) * 1000,
            # Not any true value: a claim of another form must not give this right.
            claims["acts_for_any"] is True,
            Credential(
                subject,
                (str(claims["jti"]),),
                int(claims["iat"]) * 1000,
                _issuer(claims["by"]) if "by" in claims else None,
            ),
        )
    except _DAMAGE as error:
        raise Unauthenticated(reason="the token is of another version") from error


def _written_issuer(issuer: Principal, credential: Credential) -> dict[str, Any]:
    above = credential.issuer
    claims: dict[str, Any] = {
        "name": issuer.name,
        "sub": credential.subject,
        "jti": list(credential.ids),
        "iat": credential.issued_at_ms // 1000,
    }
    if above is not None and above.credential is not None:
        claims["by"] = _written_issuer(above, above.credential)
    return claims


def _issuer(claims: Mapping[str, Any]) -> Principal:
    """The issuer in the claims, and those above it; TOKEN_BYTES_MAX bounds how many there are."""
    _known(claims, _ISSUER_CLAIMS)
    credential = Credential(
        check_name(claims["sub"], "issuer"),
        tuple(str(one) for one in claims["jti"]),
        int(claims["iat"]) * 1000,
        _issuer(claims["by"]) if "by" in claims else None,
    )
    return Principal(check_name(claims["name"], "issuer"), (), credential=credential)


def _known(claims: Mapping[str, Any], known: frozenset[str]) -> Mapping[str, Any]:
    """Refuse claims of a newer version: one may narrow the rights. Errors: Unauthenticated."""
    unknown = sorted(claims.keys() - known)
    if unknown:
        reason = f"the token is of a newer Blackboard: this one does not know {unknown[0]!r:.100}"
        raise Unauthenticated(reason=reason)
    return claims


def _written(grants: tuple[AccessGrant, ...]) -> list[Any]:
    return [[grant.pattern, sorted(grant.rights)] for grant in grants]


def _read(grants: Any) -> tuple[AccessGrant, ...]:
    return tuple(AccessGrant(pattern, frozenset(map(Right, rights))) for pattern, rights in grants)


def _boards(names: Any) -> frozenset[str]:
    return frozenset(check_name(name, "board") for name in names)


def _packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes_of(text: str) -> bytes:
    """Decode base64url. Errors: ValueError, also for another spelling: a token has only one
    form."""
    try:
        found = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise ValueError(str(error)) from error
    if _packed(found) != text:
        raise ValueError("not the spelling of base64url")
    return found


def _unpacked(text: str) -> Mapping[str, Any]:
    """Errors: Unauthenticated when it is not a JSON object."""
    try:
        found = json.loads(_bytes_of(text))
        if isinstance(found, dict):
            return found
    except (ValueError, RecursionError) as error:
        raise Unauthenticated(reason="the token is not one of this service") from error
    raise Unauthenticated(reason="the token is not one of this service")
