"""Both engines offer exactly what the port says, with the same parameters."""

import inspect

import pytest

from blackboard.engines.base import Store
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore

METHODS = sorted(name for name in vars(Store) if not name.startswith("_"))


def test_the_port_is_small() -> None:
    named = "facts open begin_epoch commit hold seed drop exists read list children log due leases"
    assert sorted([*named.split(), "compact", "remove", "removed", "boards", "aclose"]) == METHODS


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("engine", [RedisStore, SqliteStore])
def test_an_engine_takes_the_parameters_of_the_port(engine: type, method: str) -> None:
    wanted = inspect.signature(getattr(Store, method))
    found = inspect.signature(getattr(engine, method))
    assert found.parameters == wanted.parameters
    assert inspect.iscoroutinefunction(getattr(engine, method))
