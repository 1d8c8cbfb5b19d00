"""The page at `/`: files that the service sends, and the link by which its operator gets in once.

Invariants
- The page has no right of its own: it is a client like any other, with the token of its reader.
- Only the files that were found when the first one was asked for are sent: no path of a request
  ever reaches the disk.
- The link's code is good once, for PAGE_LINK_TTL_MS. It is in the fragment of a URL, which browsers
  do not send; the page exchanges it for a token, by POST.
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from blackboard.limits import DEFAULT, PAGE_LINK_TTL_MS

FOLDER: Final = Path(__file__).parents[2] / "page"
"""The page's own files."""
_CODE_BYTES: Final = 16
_CODE_CHARACTERS_MAX: Final = 64
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
HEADERS: Final = {
    # Nothing from elsewhere, nothing inline, and no other page may frame this one.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def client_folder(page: Path = FOLDER) -> Path:
    """The modules of the JavaScript client: beside the page in a wheel, in clients/js in a
    checkout."""
    packed = page / "client"
    return packed if packed.is_dir() else page.parents[1] / "clients/js/src"


@dataclass(frozen=True, slots=True)
class File:
    """A file of the page, as it is sent."""

    content: bytes
    media_type: str
    etag: str


@cache
def files() -> dict[str, File]:
    """Every file by its path below `/page/`. Read once."""
    folders = {"": FOLDER, "client/": client_folder()}
    return {
        prefix + path.relative_to(folder).as_posix(): _read(path)
        for prefix, folder in folders.items()
        for path in sorted(folder.rglob("*"))
        if path.suffix in _KINDS and path.is_file()
    }


def _read(path: Path) -> File:
    content = path.read_bytes()
    return File(content, _KINDS[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


class OneTimeLink:
    """The way in for the operator of this machine; `make_token` issues a token once it is used."""

    def __init__(
        self,
        make_token: Callable[[], str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_token = make_token
        self._clock = clock
        self.code = secrets.token_urlsafe(_CODE_BYTES)
        self._until = clock() + PAGE_LINK_TTL_MS / 1000
        self._used = False

    def take(self, code: str) -> str | None:
        """A token for the first who shows the code in time; else None."""
        # In constant time, so that a code cannot be guessed character by character.
        known = secrets.compare_digest(code.encode(), self.code.encode())
        if not known or self._used or self._clock() > self._until:
            return None
        self._used = True
        return self._make_token()


class Page:
    """The handlers of the page."""

    def __init__(
        self,
        link: OneTimeLink | None = None,
        *,
        patience_s: float = DEFAULT.connection.handshake_timeout_ms / 1000,
    ) -> None:
        self.link = link
        self._patience_s = patience_s

    async def index(self, request: Request) -> Response:
        """The document."""
        return _sent(request, "index.html")

    async def file(self, request: Request) -> Response:
        """A file that the document or a module names."""
        return _sent(request, request.path_params["path"])

    async def enter(self, request: Request) -> Response:
        """The token for the code of the one-time link. The code is good once, whatever happens to
        the answer."""
        code = await _code(request, self._patience_s)
        token = None if self.link is None or code is None else self.link.take(code)
        if token is None:
            reason = "this link was used already, or is too old"
            return JSONResponse({"reason": reason}, 403, HEADERS)
        # No cache may keep a token.
        return JSONResponse({"token": token}, headers={**HEADERS, "Cache-Control": "no-store"})


async def _code(request: Request, patience_s: float) -> str | None:
    """The body, if it can be a code, and comes in time."""
    body = b""
    try:
        async with asyncio.timeout(patience_s):
            async for part in request.stream():
                body += part
                if len(body) > _CODE_CHARACTERS_MAX:
                    return None
    except (ClientDisconnect, TimeoutError):
        return None
    return body.decode("ascii", "replace")


def _sent(request: Request, path: str) -> Response:
    # Only what is in the dictionary is sent: no path leads out of the folders.
    file = files().get(path)
    if file is None:
        return Response("There is no such file.\n", 404, HEADERS, "text/plain")
    headers = {**HEADERS, "ETag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
