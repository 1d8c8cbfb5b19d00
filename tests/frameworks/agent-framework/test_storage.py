"""Our CheckpointStorage with real workflows, beside the framework's own, with bad input."""

import asyncio
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from agent_framework import (
    CheckpointStorage,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowContext,
    executor,
)

import blackboard
from blackboard import Board
from blackboard.errors import AccessDenied, LimitExceeded, Unavailable
from blackboard.integrations.agent_framework import BlackboardCheckpointStorage
from blackboard.limits import VALUE_BYTES_MAX
from tests.frameworks.conftest import Service
from tests.frameworks.shared import collide, examples_run, losses, redact_and_restore


@dataclass
class Notes:
    """State of an application, which is pickled."""

    pages: tuple[int, ...]


@executor(id="shout")
async def shout(text: str, context: WorkflowContext[str]) -> None:
    """The first step."""
    context.set_state("seen", {"text": text, "at": datetime(2026, 1, 1, tzinfo=UTC), "set": {1, 2}})
    await context.send_message(text.upper())


@executor(id="answer")
async def answer(text: str, context: WorkflowContext[None, str]) -> None:
    """The last step."""
    await context.yield_output(text + "!")


def workflow(storage: CheckpointStorage) -> Workflow:
    """Two steps."""
    builder = WorkflowBuilder(
        start_executor=shout, name="w", checkpoint_storage=storage, output_from=[answer]
    )
    return builder.add_edge(shout, answer).build()


async def test_a_workflow_is_resumed_by_another_process(board: Board, service: Service) -> None:
    """From each of its checkpoints, over another connection."""
    result = await workflow(BlackboardCheckpointStorage(board)).run("hi")
    assert result.get_outputs() == ["HI!"]
    async with blackboard.connect(service.url, token=service.token) as client:
        storage = BlackboardCheckpointStorage(client.board("main"))
        saved = await storage.list_checkpoints(workflow_name="w")
        assert len(saved) == 3
        for one in saved[:2]:
            again = await workflow(storage).run(checkpoint_id=one.checkpoint_id)
            assert again.get_outputs() == ["HI!"]
        assert saved[-1].state["seen"]["set"] == {1, 2}


async def test_it_keeps_what_the_frameworks_own_keep(board: Board, tmp_path: Path) -> None:
    """The checkpoints of one run, copied to each storage, are equal in all of them."""
    memory = InMemoryCheckpointStorage()
    await workflow(memory).run("hi")
    ours, files = BlackboardCheckpointStorage(board), FileCheckpointStorage(tmp_path)
    ids = await memory.list_checkpoint_ids(workflow_name="w")
    for storage in (ours, files):
        for id_ in reversed(ids):
            assert await storage.save(await memory.load(id_)) == id_
    assert await ours.list_checkpoints(workflow_name="w") == await memory.list_checkpoints(
        workflow_name="w"
    )
    for id_ in ids:
        assert (await ours.load(id_)).state == (await files.load(id_)).state
    assert await ours.get_latest(workflow_name="w") == await memory.get_latest(workflow_name="w")
    assert [await ours.delete(ids[0]), await ours.delete(ids[0])] == [True, False]
    assert await ours.list_checkpoint_ids(workflow_name="w") == ids[1:]


async def test_the_latest_is_by_time(board: Board) -> None:
    """Not by the order of saving, and in any zone of time."""
    storage = BlackboardCheckpointStorage(board)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    stamps = [now.isoformat(), (now - timedelta(1)).isoformat(), "2026-01-01T02:00:00+03:00"]
    for number, stamp in enumerate(stamps):
        await storage.save(WorkflowCheckpoint("w", "hash", str(number), timestamp=stamp))
    assert await storage.list_checkpoint_ids(workflow_name="w") == ["1", "2", "0"]
    latest = await storage.get_latest(workflow_name="w")
    assert latest is not None
    assert latest.checkpoint_id == "0"
    assert await storage.get_latest(workflow_name="other") is None


async def test_types_of_an_application_are_allowed_by_name(board: Board) -> None:
    """Refused when it is saved, and not when it is needed."""
    checkpoint = WorkflowCheckpoint("w", "hash", state={"notes": Notes((1, 2))})
    with pytest.raises(WorkflowCheckpointException, match="Notes"):
        await BlackboardCheckpointStorage(board).save(checkpoint)
    named = [f"{Notes.__module__}:Notes"]
    storage = BlackboardCheckpointStorage(board, allowed_checkpoint_types=named)
    await storage.save(checkpoint)
    assert await storage.load(checkpoint.checkpoint_id) == checkpoint
    with pytest.raises(WorkflowCheckpointException, match="Notes"):
        await BlackboardCheckpointStorage(board).load(checkpoint.checkpoint_id)


# --- several workers ------------------------------------------------------------------------------


async def test_two_workers_collide(board: Board, service: Service) -> None:
    """Both lines are kept; of two checkpoints with one id, one is refused."""
    refused = await collide(Path(__file__).with_name("worker.py"), service.url, service.token)
    storage = BlackboardCheckpointStorage(board)
    saved = await storage.list_checkpoints(workflow_name="w")
    assert sorted(one.state["of"] for one in saved) == [0] * 20 + [1] * 20
    contested = await storage.list_checkpoints(workflow_name="c")
    assert len(contested) == 20
    assert sorted(refused[0] + refused[1]) == list(range(20))
    for one in contested:
        assert int(one.checkpoint_id.removeprefix("id-")) not in refused[one.state["of"]]


async def test_a_checkpoint_is_saved_once(board: Board) -> None:
    """The same one again does nothing."""
    storage, checkpoint = BlackboardCheckpointStorage(board), WorkflowCheckpoint("w", "hash")
    await storage.save(checkpoint)
    revision = (await board.head()).revision
    await storage.save(checkpoint)
    assert (await board.head()).revision == revision


async def test_a_restore_takes_checkpoints_back(board: Board, service: Service) -> None:
    """A worker that goes on in the abandoned future cannot save any more."""
    storage = BlackboardCheckpointStorage(board)
    await storage.save(WorkflowCheckpoint("w", "hash", "first"))
    await board.checkpoint("before")
    async with blackboard.connect(service.url, token=service.token) as client:
        late = BlackboardCheckpointStorage(client.board("main"))
        await late.save(WorkflowCheckpoint("w", "hash", "second"))
        await board.restore("before")
        with pytest.raises(WorkflowCheckpointException) as caught:
            await late.save(WorkflowCheckpoint("w", "hash", "third"))
    assert isinstance(caught.value.__cause__, blackboard.StaleEpoch)
    assert await storage.list_checkpoint_ids(workflow_name="w") == ["first"]


async def test_what_is_redacted_ends_no_list(board: Board, service: Service) -> None:
    """Though a restore brings its marker back: of a checkpoint, and of its time."""
    storage, place = BlackboardCheckpointStorage(board), "public/agent-framework"
    for name in "abc":
        await storage.save(WorkflowCheckpoint("w", "hash", checkpoint_id=name))
    marked = (f"{place}/workflows/w/a", f"{place}/checkpoints/c")
    await redact_and_restore(service.url, service.token, *marked)
    assert await storage.list_checkpoint_ids(workflow_name="w") == ["b", "c"]
    found = await storage.list_checkpoints(workflow_name="w")
    assert [checkpoint.checkpoint_id for checkpoint in found] == ["b"]
    latest = await storage.get_latest(workflow_name="w")
    assert latest is not None
    assert latest.checkpoint_id == "b"
    with pytest.raises(WorkflowCheckpointException, match="No checkpoint found with ID c"):
        await storage.load("c")
    assert await storage.delete("c") is False


# --- bad input ------------------------------------------------------------------------------------


async def test_a_missing_checkpoint_is_refused(board: Board) -> None:
    """As by the framework's own; deleting it is False."""
    storage = BlackboardCheckpointStorage(board)
    with pytest.raises(WorkflowCheckpointException, match="No checkpoint found with ID x/y"):
        await storage.load("x/y")
    assert await storage.delete("x/y") is False


async def test_a_foreign_namespace_is_refused(stranger: Board) -> None:
    """Read or written."""
    storage = BlackboardCheckpointStorage(stranger, prefix="private/alice/af")
    for call in (storage.load, storage.delete):
        with pytest.raises(WorkflowCheckpointException) as caught:
            await call("x")
        assert isinstance(caught.value.__cause__, AccessDenied)
    with pytest.raises(WorkflowCheckpointException):
        await storage.list_checkpoint_ids(workflow_name="w")
    with pytest.raises(WorkflowCheckpointException):
        await storage.save(WorkflowCheckpoint("w", "hash"))


@pytest.mark.parametrize("state", [{"x": "x" * VALUE_BYTES_MAX}, {"x": lambda: None}])
async def test_what_cannot_be_stored_is_refused(board: Board, state: dict[str, Any]) -> None:
    """Too large, or not to be pickled; nothing is stored."""
    storage = BlackboardCheckpointStorage(board)
    with pytest.raises(WorkflowCheckpointException) as caught:
        await storage.save(WorkflowCheckpoint("w", "hash", state=state))
    if isinstance(state["x"], str):
        assert isinstance(caught.value.__cause__, LimitExceeded)
    assert await storage.list_checkpoint_ids(workflow_name="w") == []


async def test_numbers_and_texts_that_no_json_has_are_kept(board: Board) -> None:
    """The framework only logs that a checkpoint was refused, and the workflow goes on without."""
    storage = BlackboardCheckpointStorage(board)
    state = {"best": math.inf, "worst": [-math.inf], "hash": 2**70, "cut": "\ud83d", "small": 7}
    id_ = await storage.save(WorkflowCheckpoint("w", "hash", state={**state, "none": math.nan}))
    found = (await storage.load(id_)).state
    assert math.isnan(found.pop("none"))
    assert found == state
    stored = await board.get(storage._records.key("checkpoints", id_))
    assert stored["state"]["small"] == 7


async def test_a_time_that_is_none_is_refused(board: Board) -> None:
    """Else no list and no latest checkpoint of that workflow could be read; one without a zone is
    compared with those that have one."""
    storage = BlackboardCheckpointStorage(board)
    with pytest.raises(WorkflowCheckpointException, match="cannot be encoded"):
        await storage.save(WorkflowCheckpoint("w", "hash", timestamp="yesterday"))
    times = ["2026-01-02T00:00:00+00:00", "2026-01-01T00:00:00", "2026-01-03T01:00:00+02:00"]
    ids = [await storage.save(WorkflowCheckpoint("w", "hash", timestamp=one)) for one in times]
    assert await storage.list_checkpoint_ids(workflow_name="w") == [ids[1], ids[0], ids[2]]


async def test_checkpoints_that_exceed_one_answer_are_listed(board: Board) -> None:
    """All of a workflow's checkpoints are listed with their states, and states grow."""
    storage = BlackboardCheckpointStorage(board)
    state = {"x": "x" * (VALUE_BYTES_MAX - 100_000)}
    ids = [await storage.save(WorkflowCheckpoint("w", "hash", state=state)) for _ in range(10)]
    assert [one.checkpoint_id for one in await storage.list_checkpoints(workflow_name="w")] == ids


async def test_a_dead_service_is_reported(tmp_path: Path) -> None:
    """With the board's error as the cause."""
    async with blackboard.open(tmp_path) as client:
        storage = BlackboardCheckpointStorage(client.board("main"))
    with pytest.raises(WorkflowCheckpointException) as caught:
        await storage.load("x")
    assert isinstance(caught.value.__cause__, Unavailable)


async def test_a_board_of_another_loop_is_refused(board: Board) -> None:
    """It would wait for ever."""
    storage = BlackboardCheckpointStorage(board)
    with pytest.raises(WorkflowCheckpointException, match=r"blackboard\.sync"):
        await asyncio.to_thread(lambda: asyncio.run(storage.load("x")))


async def test_the_examples_of_its_page_run(tmp_path: Path) -> None:
    """docs/howto/agent_framework.md."""
    assert await examples_run("agent_framework", tmp_path) > 0


async def test_the_benchmark_measures_every_store(tmp_path: Path) -> None:
    """Ours lose nothing; where files are, the later checkpoint replaces the one of the same id."""
    found = await losses("agent-framework", tmp_path)
    assert found["agent-framework-board"] == found["agent-framework-board-memory"] == 0
    assert found["agent-framework-files"] == 4
