"""Checkpoints of Microsoft Agent Framework's workflows on a board.

    storage = BlackboardCheckpointStorage(board)
    workflow = WorkflowBuilder(start_executor=first, checkpoint_storage=storage).build()

A checkpoint is one entry below `<prefix>/checkpoints`, and its time one below
`<prefix>/workflows/<name>`, written by the same commit.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from blackboard.errors import BlackboardError, InvalidRequest
from blackboard.integrations.framework import framework
from blackboard.integrations.sessions import AnyBoard, Records, readable
from blackboard.ops import ABSENT, Delete, KeyAt, encode_value

with framework("agent-framework"):
    from agent_framework import CheckpointID, WorkflowCheckpoint, WorkflowCheckpointException

    # What the storages of the framework's other packages import, too: there is no public name.
    from agent_framework._workflows._checkpoint_encoding import (
        _encode_pickle,
        decode_checkpoint_value,
        encode_checkpoint_value,
    )


class BlackboardCheckpointStorage:
    """A `CheckpointStorage` on `board` (asynchronous, or of `blackboard.sync`), below `prefix`.

    As in FileCheckpointStorage, only types that are known to be safe, those of the framework and
    `allowed_checkpoint_types` ("module:qualname") are unpickled. Still, let nobody write below
    `prefix` whom you would not let run code.

    Errors of every method: WorkflowCheckpointException, with the board's error as its `__cause__`.
    """

    def __init__(
        self,
        board: AnyBoard,
        *,
        prefix: str = "public/agent-framework",
        allowed_checkpoint_types: Sequence[str] = (),
    ) -> None:
        self._records = Records(board, prefix, _translate)
        self._allowed = frozenset(allowed_checkpoint_types)

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        """Store `checkpoint` (up to 1 MiB) and return its id. One that is there already is stored
        once; refused is another one of the same id, and one that could not be loaded again."""
        encoded = self._encoded(checkpoint)
        key = self._records.key("checkpoints", checkpoint.checkpoint_id)
        index = self._index(checkpoint.workflow_name, checkpoint.checkpoint_id)
        about = [checkpoint.checkpoint_id, checkpoint.timestamp]
        ops = [self._records.put(key, encoded), self._records.put(index, about)]
        if not await self._records.accepted(ops, KeyAt(key, ABSENT)):
            # The same one, saved again because the answer was lost, is no error.
            there = await self._records.entry(key)
            if there is None or there.value != encoded:
                reason = f"Another checkpoint has the ID {checkpoint.checkpoint_id}"
                raise WorkflowCheckpointException(reason)
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: CheckpointID) -> WorkflowCheckpoint:
        """The checkpoint with that id. Errors: WorkflowCheckpointException if there is none."""
        found = await self._found(checkpoint_id)
        if found is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return found

    async def _found(self, checkpoint_id: CheckpointID) -> WorkflowCheckpoint | None:
        entry = await self._records.entry(self._records.key("checkpoints", checkpoint_id))
        entry = readable(entry)
        return None if entry is None else self._decoded(entry.value)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """The checkpoints of a workflow, oldest first."""
        ids = await self.list_checkpoint_ids(workflow_name=workflow_name)
        keys = [self._records.key("checkpoints", one) for one in ids]
        found = await self._records.entries(keys)
        there = [entry for key in keys if (entry := readable(found.get(key))) is not None]
        return [self._decoded(entry.value) for entry in there]

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[CheckpointID]:
        """The ids of the checkpoints of a workflow, oldest first."""
        index = self._records.key("workflows", workflow_name)
        found = [entry.value for entry in await self._records.all(f"{index}/*")]
        return [one for one, _ in sorted(found, key=lambda about: _time(about[1]))]

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """The newest checkpoint of a workflow, or None."""
        for one in reversed(await self.list_checkpoint_ids(workflow_name=workflow_name)):
            found = await self._found(one)
            if found is not None:  # else it was deleted just now, or redacted
                return found
        return None

    async def delete(self, checkpoint_id: CheckpointID) -> bool:
        """Remove a checkpoint; False when there is none with that id."""
        key = self._records.key("checkpoints", checkpoint_id)
        entry = readable(await self._records.entry(key))
        if entry is None:
            return False
        index = self._index(entry.value["workflow_name"], checkpoint_id)
        condition = KeyAt(key, entry.mod_revision)
        return bool(await self._records.accepted([Delete(key), Delete(index)], condition))

    def _index(self, workflow_name: str, checkpoint_id: CheckpointID) -> str:
        return self._records.key("workflows", workflow_name, checkpoint_id)

    def _encoded(self, checkpoint: WorkflowCheckpoint) -> dict[str, Any]:
        """The stored form, which has been read back. Errors: WorkflowCheckpointException."""
        try:
            encoded: dict[str, Any] = _storable(encode_checkpoint_value(checkpoint.to_dict()))
            _time(checkpoint.timestamp)  # what cannot be read would end every list
        except Exception as error:
            reason = f"Checkpoint {checkpoint.checkpoint_id} cannot be encoded: {error}"
            raise WorkflowCheckpointException(reason) from error
        self._decoded(encoded)
        return encoded

    def _decoded(self, encoded: dict[str, Any]) -> WorkflowCheckpoint:
        fields = decode_checkpoint_value(encoded, allowed_types=self._allowed)
        return WorkflowCheckpoint.from_dict(fields)


def _translate(error: BlackboardError) -> WorkflowCheckpointException:
    return WorkflowCheckpointException(str(error))


def _time(timestamp: str) -> datetime:
    """The time that a checkpoint states; one without a zone is in UTC, as the framework's are."""
    found = datetime.fromisoformat(timestamp)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _storable(encoded: Any) -> Any:
    """`encoded` for a board, whose values have no infinity, no integer of more than 64 bits and no
    text that is not Unicode: these are pickled, as is all else that is not JSON."""
    if isinstance(encoded, dict):
        return {name: _storable(value) for name, value in encoded.items()}
    if isinstance(encoded, list):
        return [_storable(value) for value in encoded]
    try:
        encode_value(encoded)
    except InvalidRequest:
        return _encode_pickle(encoded)
    return encoded
