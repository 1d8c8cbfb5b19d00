"""One table of methods: the service, the client, the description and the rights all follow it."""

import inspect
import re
from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from msgspec import structs

from blackboard.client.link import Transport
from blackboard.client.remote.link import RemoteTransport
from blackboard.core.access import WHOLE_BOARD, Checked
from blackboard.server.http.dispatch import HANDLERS, OF_CONNECTIONS, PLAIN
from blackboard.server.http.schema import asyncapi
from blackboard.server.requests import RequestHandler
from blackboard.wire import methods as table
from blackboard.wire.methods import AUDITED, METHODS, RIGHTS, Charge, Params

NOT_IN_A_TRANSPORT = {"hello", "refresh", "unwatch", "progress"}
"""Talk of a connection about itself and its watches."""


def sources(methods: Iterable[Any]) -> str:
    """The code of some methods."""
    return "\n".join(map(inspect.getsource, methods))


def test_every_record_of_params_is_in_the_table() -> None:
    """Under its own name, once."""
    records = {
        kind
        for _, kind in inspect.getmembers(table, inspect.isclass)
        if issubclass(kind, Params) and kind is not Params
    }
    assert records == {method.request for method in METHODS.values()}
    assert len(records) == len(METHODS)
    assert {name: method.request.method for name, method in METHODS.items()} == {
        name: name for name in METHODS
    }


def test_every_method_has_exactly_one_handler() -> None:
    """A function of the dispatcher, or the connection itself."""
    assert HANDLERS.keys() | OF_CONNECTIONS == METHODS.keys()
    assert not HANDLERS.keys() & OF_CONNECTIONS
    for name in HANDLERS.keys() - PLAIN:
        (_, params) = inspect.signature(HANDLERS[name]).parameters.values()
        assert params.annotation is METHODS[name].request


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_a_method_without_a_handler_of_its_own_fits_its_link(name: str) -> None:
    """The link takes what the params have, by the same names or as one record, and returns what the
    params say. The client's half is made of the table, or checked by its types."""
    request = METHODS[name].request
    given = dict.fromkeys(set(request.__struct_fields__) - {"agent"})
    if request.noun is not None:
        assert given.keys() - {"board"} == set(inspect.signature(request.noun).parameters)
        given = {"board": None, "spec": None}
    for kind in (RequestHandler, Transport):
        method = getattr(kind, name)
        inspect.signature(method).bind(None, **given)
        returned = get_type_hints(method)["return"]
        if name == "audit":  # its records belong to the client
            continue
        assert _as_list(returned) == (_found(METHODS[name].request) or NoneType), kind


def _found(request: type[Params[Any]]) -> Any:
    """What a client makes of the result: the argument of `Params`."""
    (base,) = request.__orig_bases__  # type: ignore[attr-defined]
    return get_args(base)[0]


def _as_list(kind: Any) -> Any:
    """What a sequence is on the wire."""
    return list[get_args(kind)] if get_origin(kind) is Sequence else kind  # type: ignore[misc]


def test_the_service_and_the_client_have_a_method_for_each() -> None:
    """The port between a board and its service, this process and the remote side."""
    expected = METHODS.keys() - NOT_IN_A_TRANSPORT
    for kind in (Transport, RequestHandler, RemoteTransport):
        assert expected <= set(dir(kind)), kind


def test_the_client_sends_every_record() -> None:
    """So that a record that nobody sends is noticed; greetings and watches belong to a channel."""
    sent = set(re.findall(r"methods\.(\w+Params)\b", inspect.getsource(RemoteTransport)))
    expected = {METHODS[name].request.__name__ for name in HANDLERS.keys() | {"whoami"}}
    assert sent == expected


def test_every_method_is_described() -> None:
    """Its params and its result, with the members that the records have."""
    described = asyncapi()["components"]["messages"]
    for name, method in METHODS.items():
        params = described[name]["payload"]["properties"]["params"]
        assert params["properties"].keys() == {f.name for f in structs.fields(method.request)}
        assert "result" in described[f"{name}.result"]["payload"]["properties"]


def test_rights_on_a_whole_board_are_checked_by_the_table() -> None:
    """The service asks the table, under the name of the method, and names no right itself."""
    whole = {name for name, right in RIGHTS.items() if right in WHOLE_BOARD}
    assert {"restore", "export", "pin"} <= whole
    for name in whole:
        code = sources([getattr(RequestHandler, name)])
        assert re.search(rf"_(use\(board, |check_whole\()\"{name}\"", code), name
        assert "Right." not in code, name


def test_what_is_audited_is_recorded_under_its_name() -> None:
    """Each method of the service opens a block of the audit under its own name."""
    for name in METHODS.keys() - NOT_IN_A_TRANSPORT:
        assert f'_audited("{name}"' in sources([getattr(RequestHandler, name)]), name
    assert METHODS.keys() >= AUDITED >= {"restore", "export", "revoke"}


def test_only_reads_wait_their_turn() -> None:
    """What changes a board as a whole begins at once; an export reads it page by page."""
    for name, method in METHODS.items():
        if method.right in WHOLE_BOARD and name != "export":
            assert method.charge is Charge.WORK, name
    assert METHODS["commit"].charge is Charge.COMMIT
    assert METHODS["read"].right is Checked.EACH_KEY
    assert METHODS["read"].charge is Charge.READ
