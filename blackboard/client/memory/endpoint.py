"""Embeddings from a service that speaks OpenAI's protocol.

Invariants
- An answer is never read beyond what the vectors that were asked for can take.
- No redirect is followed: it would send texts and key to another service. The key is only in the
  header of the request.
"""

import json
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from blackboard.errors import ModelFailed
from blackboard.limits import EMBEDDING_DIMENSIONS_MAX, MEMORY_CALL_MS_MAX

_NUMBER_BYTES: Final = 32
"""One number of a vector in JSON, with what stands around it."""
_ROW_BYTES: Final = _NUMBER_BYTES * (EMBEDDING_DIMENSIONS_MAX + 16)
"""One vector, with its other members."""
_TOLD_CHARACTERS_MAX: Final = 500


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow none: the status is the answer."""


def embeddings(url: str, model: str, key: str, texts: Sequence[str]) -> list[Any]:
    """One vector for each of `texts`, as the service at `url` answers; it is asked once.

    Blocks, up to MEMORY_CALL_MS_MAX for each read. Errors: ModelFailed.
    """
    body = json.dumps({"model": model, "input": list(texts), "encoding_format": "float"}).encode()
    headers = {"content-type": "application/json"} | (
        {"authorization": f"Bearer {key}"} if key else {}
    )
    request = Request(f"{url.rstrip('/')}/embeddings", body, headers)
    bytes_max = _ROW_BYTES * (len(texts) + 1)
    try:
        with build_opener(_NoRedirects).open(request, timeout=MEMORY_CALL_MS_MAX / 1_000) as answer:
            content = answer.read(bytes_max + 1)
    except HTTPError as refusal:
        with refusal:
            told = refusal.read(_TOLD_CHARACTERS_MAX).decode(errors="replace")
        raise ModelFailed(model, told or str(refusal.reason), refusal.code) from refusal
    except (OSError, HTTPException) as error:
        raise ModelFailed(
            model, f"{type(error).__name__}: {error}"[:_TOLD_CHARACTERS_MAX]
        ) from error
    if len(content) > bytes_max:
        raise ModelFailed(model, f"an answer of more than {bytes_max:,} bytes")
    return _vectors_in(model, content)


def _vectors_in(model: str, content: bytes) -> list[Any]:
    try:
        rows = json.loads(content)["data"]
        ordered = sorted(rows, key=lambda row: row["index"])
        return [row["embedding"] for row in ordered]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelFailed(model, "answered with something else than embeddings", 200) from error
