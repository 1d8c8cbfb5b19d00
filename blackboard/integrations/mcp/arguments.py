"""The arguments of the tools, as a model reads them and as they are checked.

The texts are written for models: short, with an example where a form is expected. An argument of
another name is refused, and the refusal names the one that was likely meant.
"""

from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from blackboard.integrations.mcp.answers import ToolFailure, refused, without_titles
from blackboard.limits import TTL_MS_MAX

WAIT_S_MAX = 50
"""The longest wait of one call. Clients give up on a call after a minute."""
CLAIM_S = 600
"""How long a claim lasts, if nothing else is asked for."""
CLAIM_S_MAX = 3_600
"""The longest claim: one that is forgotten keeps others waiting no longer."""
KEYS_MAX = 64
"""Keys, patterns and facts in one call: what a model means to look at."""


# Models often give one text where a list of them is expected.
def _listed(given: object) -> object:
    return [given] if isinstance(given, str) else given


# Models quote numbers, and a revision in quotes would be taken for the name of a checkpoint.
def _number(given: object) -> object:
    return int(given) if isinstance(given, str) and given.isascii() and given.isdecimal() else given


Keys = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1, max_length=KEYS_MAX)]
Moment = Annotated[int | str, BeforeValidator(_number)]
Note = Annotated[str, Field(description="Why, in a few words; the log keeps it.")]
Expected = Annotated[
    int | None,
    Field(
        ge=0,
        description="Only if the key is still at this revision (0: only if it does not exist).",
    ),
]
At = Annotated[
    Moment | None,
    Field(description="An earlier moment: a revision, or the name of a checkpoint."),
]


class ToolArguments(BaseModel):
    """The arguments of one tool."""

    model_config = ConfigDict(extra="forbid")


class ReadArguments(ToolArguments):
    """Of `read`."""

    keys: Annotated[Keys, Field(description='For example ["public/plan"].')]
    at: At = None
    offset: Annotated[
        int,
        Field(ge=0, description="Continue a long value here: `next_offset` of the last answer."),
    ] = 0


class ListArguments(ToolArguments):
    """Of `list`."""

    directory: Annotated[
        str, Field(description='For example "public/plan"; "" shows the whole board.')
    ] = ""
    recursive: Annotated[bool, Field(description="All keys below it, not only its own.")] = False
    values: Annotated[bool, Field(description="Also the beginning of each value.")] = False
    at: At = None
    after: Annotated[str | None, Field(description="`next` of the last answer.")] = None


class WriteArguments(ToolArguments):
    """Of `write`."""

    key: Annotated[str, Field(description="For example public/plan/budget.")]
    value: Annotated[Any, Field(description="Any JSON value.")]
    expected_revision: Expected = None
    based_on: Annotated[
        list[str],
        BeforeValidator(_listed),
        Field(
            max_length=KEYS_MAX,
            description="Keys that you have read and rely on: refused if one has changed since.",
        ),
    ] = []
    ttl_s: Annotated[
        float | None,
        Field(gt=0, le=TTL_MS_MAX // 1000, description="Remove it after so many seconds."),
    ] = None
    note: Note = ""


class AppendArguments(ToolArguments):
    """Of `append`."""

    directory: Annotated[
        str, Field(description="For example public/news, or inbox/AGENT/messages.")
    ]
    value: Annotated[Any, Field(description="Any JSON value.")]
    note: Note = ""


class DeleteArguments(ToolArguments):
    """Of `delete`."""

    key: str
    expected_revision: Expected = None
    note: Note = ""


class ClaimArguments(ToolArguments):
    """Of `claim`."""

    key: Annotated[
        str, Field(description="What you want for yourself, for example public/files/src/app.py.")
    ]
    seconds: Annotated[
        float, Field(gt=0, le=CLAIM_S_MAX, description="It ends by itself after that.")
    ] = CLAIM_S
    wait_s: Annotated[
        float, Field(ge=0, le=WAIT_S_MAX, description="Wait in its queue for so long.")
    ] = 0


class ReleaseArguments(ToolArguments):
    """Of `release`."""

    key: str


class ClaimsArguments(ToolArguments):
    """Of `claims`."""

    pattern: Annotated[str, Field(description="For example public/files/**.")] = "public/**"


class WaitArguments(ToolArguments):
    """Of `wait`."""

    patterns: Annotated[
        Keys, Field(description='Keys or patterns: ["public/plan", "inbox/me/**"].')
    ]
    after: Annotated[
        Moment | None,
        Field(description="`next` of the last wait, or a revision: nothing after it is missed."),
    ] = None
    seconds: Annotated[float, Field(ge=0, le=WAIT_S_MAX)] = 25


class HistoryArguments(ToolArguments):
    """Of `history`."""

    key: str
    before: Annotated[int | None, Field(ge=1, description="`next` of the last answer.")] = None
    limit: Annotated[int, Field(ge=1, le=100)] = 10


class WhyArguments(ToolArguments):
    """Of `why`."""

    key: str


class CheckpointArguments(ToolArguments):
    """Of `checkpoint`."""

    name: Annotated[str, Field(description="A new name, for example before-refactoring.")]
    note: Note = ""


class CheckpointsArguments(ToolArguments):
    """Of `checkpoints`."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20


class DiffArguments(ToolArguments):
    """Of `diff`."""

    since: Annotated[Moment, Field(description="A revision, or the name of a checkpoint.")]
    until: Annotated[Moment, Field(description="The same, or now.")] = "now"
    pattern: Annotated[str, Field(description="For example public/plan/**.")] = "**"


class RestoreArguments(ToolArguments):
    """Of `restore`."""

    to: Annotated[Moment, Field(description="The name of a checkpoint, or a revision.")]
    note: Note = ""
    confirm: Annotated[
        str | None,
        Field(description="The `confirm` of the preview, once your user has agreed to it."),
    ] = None


class AskArguments(ToolArguments):
    """Of `ask`."""

    question: Annotated[str, Field(min_length=1, max_length=2_000)]
    id: Annotated[
        str | None,
        Field(description="Of an earlier request, with its arguments: look for the answer."),
    ] = None
    facts: Annotated[
        list[str],
        BeforeValidator(_listed),
        Field(
            max_length=KEYS_MAX,
            description="Keys that the answer depends on: if one changes, you must ask again.",
        ),
    ] = []
    details: Annotated[Any, Field(description="What a person needs to decide.")] = None
    approvers: Annotated[
        list[str],
        BeforeValidator(_listed),
        Field(max_length=KEYS_MAX, description="Only they can answer."),
    ] = []


class ApprovalsArguments(ToolArguments):
    """Of `approvals`."""

    agent: Annotated[str, Field(description="Of one agent only.")] = "*"


class AnswerArguments(ToolArguments):
    """Of `answer`."""

    agent: Annotated[str, Field(description="The agent that made the request.")]
    id: str
    revision: Annotated[int, Field(ge=1, description="Of the request, as `approvals` shows it.")]
    approved: bool
    reason: Annotated[str, Field(max_length=2_000)] = ""


A = TypeVar("A", bound=ToolArguments)


def input_schema(arguments: type[ToolArguments]) -> dict[str, Any]:
    """The JSON schema of the arguments."""
    schema = dict(without_titles(arguments.model_json_schema()))
    schema.pop("description", None)
    return schema


def checked(arguments: type[A], given: dict[str, Any]) -> A:
    """The arguments. Errors: ToolFailure, which names the argument and what would do."""
    try:
        return arguments.model_validate(given)
    except ValidationError as error:
        raise _wrong(arguments, error) from error


def _wrong(arguments: type[ToolArguments], error: ValidationError) -> ToolFailure:
    known = list(arguments.model_fields)
    said: list[str] = []
    fixes: list[str] = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False)[:5]:
        name = str(problem["loc"][0]) if problem["loc"] else "arguments"
        if problem["type"] == "extra_forbidden":
            near = get_close_matches(name, known, n=1)
            said.append(f"there is no argument {name[:100]}")
            fixes.append(f"Use {near[0]}." if near else "Leave it out.")
        elif problem["type"] == "missing":
            said.append(f"{name} is missing")
        else:
            said.append(f"{name}: {problem['msg']}")
    fixes.append(f"Arguments are: {', '.join(known)}.")
    return refused("invalid_arguments", "; ".join(said), " ".join(dict.fromkeys(fixes)))
