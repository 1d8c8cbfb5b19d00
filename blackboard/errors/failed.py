"""What goes wrong on the way: with the link, the engine, the stored bytes, a lease."""

from dataclasses import dataclass
from typing import ClassVar

from blackboard.errors.root import BlackboardError


@dataclass(eq=False)
class LeaseLost(BlackboardError):
    """Lease `key`, held under `fence`, was lost in the middle of a block, because of `reason`.

    The block was cancelled. Its earlier commits stand; none after another holder took the lease
    takes effect. `holder` has it now, if that is known.
    """

    code: ClassVar[str] = "lease_lost"
    key: str
    fence: int
    reason: str
    holder: str | None = None


@dataclass(eq=False)
class Unavailable(BlackboardError):
    """Not done: `what` cannot be reached or cannot answer now. Trying again is safe."""

    code: ClassVar[str] = "unavailable"
    retryable: ClassVar[bool] = True
    what: str
    reason: str


@dataclass(eq=False)
class Overloaded(Unavailable):
    """Not done: `what` has too much to do. Trying again is safe, after `retry_after_ms`."""

    code: ClassVar[str] = "overloaded"
    retry_after_ms: int


@dataclass(eq=False)
class RateLimited(Overloaded):
    """Not done: the principal asked for more than its rate allows; `what` names the rate."""

    code: ClassVar[str] = "rate_limited"


@dataclass(eq=False)
class OutcomeUnknown(BlackboardError):
    """What changes something was sent, and its answer did not come: it may have been done or not.

    A commit is named by `agent`, `lane`, `incarnation` and `step`; sending the same one again gets
    its outcome, unless it is `final`: later answers have displaced it, and only the board's log can
    show it. Another request of `agent` is identified by `method` ("restore"), and by `request` if
    it has one; sending the same request again gets its outcome.
    """

    code: ClassVar[str] = "outcome_unknown"
    retryable: ClassVar[bool] = True
    agent: str
    lane: int | None
    incarnation: str | None
    step: int | None
    reason: str
    final: bool = False
    method: str = "commit"
    request: str | None = None

    @classmethod
    def of(
        cls, method: str, agent: str, reason: str, *, request: str | None = None
    ) -> "OutcomeUnknown":
        """The error for a request that is not a commit."""
        return cls(agent, None, None, None, reason, method=method, request=request)


@dataclass(eq=False)
class LocalProtocolError(BlackboardError):
    """This side tried what the connection's state does not allow. A bug of the caller."""

    code: ClassVar[str] = "local_protocol_error"
    reason: str


@dataclass(eq=False)
class RemoteProtocolError(BlackboardError):
    """The peer sent something that is not the protocol. `close_code` suits the WebSocket close."""

    code: ClassVar[str] = "remote_protocol_error"
    reason: str
    close_code: int = 1002


@dataclass(eq=False)
class Corrupt(BlackboardError):
    """`what` is not what was written: `reason`. Never retried, never repaired silently."""

    code: ClassVar[str] = "corrupt"
    what: str
    reason: str


@dataclass(eq=False)
class NewerFormat(BlackboardError):
    """`what` has format `found`, and this program knows formats up to `known`; it is unchanged."""

    code: ClassVar[str] = "newer_format"
    what: str
    found: int
    known: int

    def __str__(self) -> str:
        return (
            f"{self.what} was written by a newer Blackboard: it has format {self.found}, and this"
            f" program knows formats up to {self.known}. Nothing was changed: use the newer version"
        )


@dataclass(eq=False)
class OlderFormat(BlackboardError):
    """`what` has format `found`, and this program reads formats from `oldest` on; it is unchanged.

    `lacks` names the columns that it would have to have, if it has no mark of its format.
    """

    code: ClassVar[str] = "older_format"
    what: str
    found: int
    oldest: int
    lacks: str = ""

    def __str__(self) -> str:
        lacks = f" without columns that this one reads ({self.lacks})"
        return (
            f"{self.what} was written by an older version of Blackboard: it has format {self.found}"
            f"{lacks if self.lacks else f', and this program reads formats from {self.oldest} on'}."
            " Nothing was changed: export the checkpoints with that version, and import them into"
            " a new data directory with this one"
        )


@dataclass(eq=False)
class EngineRefused(BlackboardError):
    """The engine's `setting` has `value`, with which data would be lost; `needed` would do."""

    code: ClassVar[str] = "engine_refused"
    setting: str
    value: str
    needed: str


@dataclass(eq=False)
class DataDirectoryInUse(BlackboardError):
    """Process `pid` owns the data directory `path`; connect to it at `url` instead.

    With `is_this_process` the owner is a client of the caller's own: use it, or close it first.
    """

    code: ClassVar[str] = "data_directory_in_use"
    path: str
    pid: int | None
    url: str | None
    is_this_process: bool = False

    def __str__(self) -> str:
        if self.is_this_process:
            return (
                f"data directory {self.path} is open in this process already: use that client, or"
                " aclose() it first"
            )
        how = f"connect to it: blackboard.connect({self.url!r})" if self.url else "stop it first"
        return f"data directory {self.path} is in use by process {self.pid}; {how}"
