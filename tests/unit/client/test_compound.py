"""Changes that take more than one request."""

from pathlib import Path
from typing import Any, cast

import blackboard
from blackboard.client.compound import recover_all
from blackboard.client.link import Transport
from blackboard.core.checkpoints import Recovered, RecoverRequest
from blackboard.core.commit import Put
from blackboard.errors import Unavailable
from blackboard.limits import OPERATIONS_MAX
from blackboard.wire.codec import encode_value

DONE = Recovered(True, 5, 5, 6, "e")


async def test_a_deletion_of_many_keys_reads_no_values(tmp_path: Path) -> None:
    """A page of them has as many keys as one commit removes, however large the values are."""
    async with blackboard.open(tmp_path, level="memory") as client:
        board = client.board("main")
        value = encode_value("x" * 3000)
        await board.commit([Put(f"public/old/{n}", value) for n in range(OPERATIONS_MAX)])
        await board.put("public/old/last", 1)
        told: list[int] = []
        gone = await board.delete_prefix("public/old", progress=told.append)
        assert (len(gone), told) == (OPERATIONS_MAX + 1, [OPERATIONS_MAX])


class Recovering:
    """A link to a service that recovers a board."""

    async def recover(self, board: str, spec: RecoverRequest) -> Any:
        """At once."""
        return DONE


async def test_a_recovery_is_done_though_the_service_goes_away_then() -> None:
    """The board of the caller is not refreshed, so its next commit is refused."""

    async def refresh() -> None:
        raise Unavailable("service", "it stops")

    link = cast(Transport, Recovering())
    assert await recover_all(link, "main", RecoverRequest(), None, refresh) == DONE
