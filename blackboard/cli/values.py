"""Values on the command line: text to value, value to text.

JSON has no bytes: they are written as `{"$bytes": "<base64>"}`, here as on the wire.
"""

import json
from typing import Any, Final

from blackboard.cli.errors import wrong_usage
from blackboard.errors import RemoteProtocolError
from blackboard.wire.frames import JSON, NotAMap

_OPENINGS: Final = ("{", "[", '"')


def parse(text: str, *, is_json: bool | None = None) -> Any:
    """The value that `text` means: JSON if it is JSON, else the text itself.

    `is_json` True: JSON or nothing. False: the text as it is. With None, text that begins like JSON
    but is none is refused rather than kept as a string that looks like an object.
    Errors: CommandError.
    """
    if is_json is False:
        return text
    try:
        return _from_json(text)
    except ValueError as error:
        if is_json or text.lstrip().startswith(_OPENINGS):
            raise wrong_usage(
                f"the value is not JSON: {error}",
                "Quote it for your shell, or use --string to keep it as text.",
            ) from error
        return text


def parse_bytes(content: bytes, *, is_json: bool | None = None) -> Any:
    """The value that the content of a file means; what is not text stays bytes."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        if is_json is not None:
            raise wrong_usage("the file is not UTF-8 text") from error
        return content
    return parse(text if is_json is False else text.removesuffix("\n"), is_json=is_json)


def compact(value: Any) -> str:
    """A value as one line of JSON."""
    return JSON.pack(value).decode()


def pretty(value: Any) -> str:
    """A value as JSON for people."""
    return json.dumps(json.loads(JSON.pack(value)), indent=2, ensure_ascii=False)


def _from_json(text: str) -> Any:
    try:
        found = JSON.split(f"[{text}]".encode())
    except UnicodeEncodeError as error:
        raise ValueError("it holds characters that are not Unicode text") from error
    except RemoteProtocolError as error:
        raise ValueError(_why_not(text) or error.reason) from error
    if len(found) != 1:
        raise ValueError("there is more than one value")
    if _holds_no_map(found[0]):
        raise ValueError('a key stands twice, or "$bytes" is not base64')
    return found[0]


def _why_not(text: str) -> str:
    """What the JSON parser says of the text alone, with the position as people count it."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"{error.msg} (line {error.lineno}, column {error.colno})"
    except RecursionError:
        return "it is nested too deep"
    return ""


def _holds_no_map(value: Any) -> bool:
    if isinstance(value, (dict, list)):
        items = value.values() if isinstance(value, dict) else value
        return any(_holds_no_map(item) for item in items)
    return isinstance(value, NotAMap)
