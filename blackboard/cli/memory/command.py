"""memory: texts and facts that are found by meaning or by words: search, list, show, remember,
forget.

BB_EMBED_MODEL names the model that embeds, at a service that speaks OpenAI's protocol
(OPENAI_BASE_URL, OPENAI_API_KEY). Without it, everything is by words.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from blackboard.cli import screen
from blackboard.cli.errors import CommandError, not_found, wrong_usage
from blackboard.cli.options import CommandGroup, Flags, ReadCommand, options_of

if TYPE_CHECKING:
    from blackboard.client.board import Board
    from blackboard.client.memory.memory import Memory
    from blackboard.client.memory.records import MemoryFilter, Remembered
    from blackboard.runtime.models import Endpoint

_LIMIT_DEFAULT = 10
_LIMIT = typer.Option("--limit", metavar="N", min=1, help="How many at most.")
_WHICH = typer.Argument(
    metavar="ID", help="The id that search and list show, its name, or its key.", show_default=False
)
_BY_WORDS = "by words alone: BB_EMBED_MODEL names no model"

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Texts and facts, found by meaning or by words."
)


def _store(
    store: Annotated[
        str, typer.Option("--store", metavar="NAME", help="Which store of memories.")
    ] = "main",
    public: Annotated[
        bool, typer.Option("--public", help="That of the team, and not the agent's own.")
    ] = False,
) -> None: ...


def _only(
    author: Annotated[
        str | None,
        typer.Option("--author", metavar="AGENT", help="Only those of one author."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only from then on: 2026-11-21T09:30."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Only from before then.")
    ] = None,
    fact: Annotated[
        list[str] | None,
        typer.Option("--fact", metavar="NAME=VALUE", help="Only facts with that member."),
    ] = None,
) -> None: ...


class StoreCommand(ReadCommand):
    """A command on one store of memories."""

    shared: ClassVar[Sequence[Any]] = [*options_of(_store), *ReadCommand.shared]


class FindCommand(StoreCommand):
    """A command that finds memories."""

    shared: ClassVar[Sequence[Any]] = [*options_of(_only), *StoreCommand.shared]


# --- finding --------------------------------------------------------------------------------------


@app.command(
    cls=FindCommand,
    epilog="""\
blackboard memory search "currency of the invoices"
blackboard memory search invoice --words --limit 3  # by words alone
blackboard memory search ships --fact port=Kiel --author ann
blackboard memory search invoices --json | jq -r '.memories[].text'""",
)
def search(
    context: typer.Context,
    text: Annotated[str, typer.Argument(metavar="TEXT", show_default=False)],
    words: Annotated[bool, typer.Option("--words", help="By words alone.")] = False,
    limit: Annotated[int, _LIMIT] = _LIMIT_DEFAULT,
) -> None:
    """Print the memories that fit a text best, the best first.

    By meaning and by words if BB_EMBED_MODEL names the model of the store, else by words.
    """
    from blackboard.cli import session

    flags = Flags.of(context)
    where = _filter(flags)
    endpoint = None if words else _endpoint()

    async def look(board: "Board") -> "Sequence[Remembered]":
        async with _store_of(board, flags, endpoint) as memory:
            return await memory.search(text, limit=limit, where=where)

    found = session.with_board(flags, look)
    if endpoint is None and not words and not flags.as_json:
        screen.say(_BY_WORDS)
    _print(found, flags)


@app.command(
    "list",
    cls=FindCommand,
    epilog="""\
blackboard memory list
blackboard memory list --public --since 2026-11-21T09:30 --limit 50""",
)
def list_newest(
    context: typer.Context,
    limit: Annotated[int, _LIMIT] = _LIMIT_DEFAULT,
) -> None:
    """List memories, the newest first."""
    from blackboard.cli import session

    flags = Flags.of(context)
    where = _filter(flags)

    async def look(board: "Board") -> "Sequence[Remembered]":
        async with _store_of(board, flags) as memory:
            return await memory.newest(limit, where=where)

    _print(session.with_board(flags, look), flags)


@app.command(
    cls=StoreCommand,
    epilog="""\
blackboard memory show ships
blackboard memory show ships --at 3  # as it was at that revision""",
)
def show(
    context: typer.Context,
    which: Annotated[str, _WHICH],
    at: Annotated[
        str | None, typer.Option("--at", metavar="MOMENT", help="As it was then.")
    ] = None,
) -> None:
    """Print a memory with its fact, author and sources."""
    from blackboard.cli import render, session, values
    from blackboard.client.memory.records import record_of, remembered

    flags = Flags.of(context)
    moment = None if at is None else values.parse_moment(at)

    async def read(board: "Board") -> "Remembered":
        async with _store_of(board, flags) as memory:
            key = _key(memory, which)
        entry = await board.entry(key, at=moment)
        record = None if entry is None else record_of(entry)
        if entry is None or record is None:
            raise _absent(key)
        return remembered(entry, record)

    found = session.with_board(flags, read)
    if flags.as_json:
        render.print_json(render.plain(found))
    else:
        render.print_memory(found)


# --- changing -------------------------------------------------------------------------------------


@app.command(
    cls=StoreCommand,
    epilog="""\
blackboard memory remember "The customer wants invoices in euros" --source public/mail
blackboard memory remember '{"text": "Ships leave on Monday", "port": "Kiel"}' --name ships
echo "a longer text" | blackboard memory remember - --ttl 3600  # from standard input""",
)
def remember(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", help="Or a fact, as a JSON object. - reads stdin.", show_default=False
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Replace the one of that name.")
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option("--source", metavar="KEY", help="What it was made from: why follows it."),
    ] = None,
    ttl_s: Annotated[
        float | None, typer.Option("--ttl", metavar="SECONDS", help="Forget it after that time.")
    ] = None,
    string: Annotated[bool, typer.Option("--string", help="A text, also if it is JSON.")] = False,
) -> None:
    """Keep a text or a fact, and print its key.

    With an embedding, if BB_EMBED_MODEL names a model.
    """
    from blackboard.cli import render, session, values

    flags, endpoint = Flags.of(context), _endpoint()
    content = _content(what, is_text=string)
    if ttl_s is not None and not ttl_s > 0:
        raise wrong_usage("--ttl must be more than 0 seconds")
    ttl_ms = values.milliseconds(ttl_s, "--ttl")

    async def write(board: "Board") -> str:
        async with _store_of(board, flags, endpoint) as memory:
            return await memory.remember(content, name=name, sources=source or (), ttl_ms=ttl_ms)

    key = session.with_board(flags, write, create=True)
    if flags.as_json:
        render.print_json({"key": key})
        return
    screen.answer(key)
    if endpoint is None:
        screen.say(f"it is found {_BY_WORDS}")


@app.command(
    cls=StoreCommand,
    epilog="""\
blackboard memory forget ships
blackboard memory forget 0000000000 0000000001""",
)
def forget(
    context: typer.Context,
    which: Annotated[list[str], _WHICH],
) -> None:
    """Remove memories.

    The history still has them: redact removes them from there, too.
    """
    from blackboard.cli import render, session

    flags = Flags.of(context)

    async def remove(board: "Board") -> int:
        async with _store_of(board, flags) as memory:
            keys = [_key(memory, one) for one in which]
            gone = await memory.forget(*keys)
            if not gone:
                raise _absent(keys[0])
            return gone

    gone = session.with_board(flags, remove)
    if flags.as_json:
        render.print_json({"forgotten": gone})
    else:
        count = "1 memory" if gone == 1 else f"{gone} memories"
        screen.answer(f"{count} forgotten")


@app.command(
    cls=StoreCommand,
    epilog="""\
BB_EMBED_MODEL=nomic-embed-text blackboard memory reembed  # after the model was changed""",
)
def reembed(
    context: typer.Context,
) -> None:
    """Embed what has no embedding of the present model.

    BB_EMBED_MODEL names it. From then on it is the model of the store. If it is interrupted, it
    can be run again.
    """
    from blackboard.cli import render, session

    flags, endpoint = Flags.of(context), _endpoint()
    if endpoint is None:
        raise wrong_usage("BB_EMBED_MODEL names no model")

    async def embed(board: "Board") -> int:
        async with _store_of(board, flags, endpoint) as memory:
            return await memory.reembed()

    done = session.with_board(flags, embed)
    if flags.as_json:
        render.print_json({"embedded": done, "model": endpoint.model})
    else:
        screen.answer(f"{done} embedded with {endpoint.model}")


# --- what the commands share ----------------------------------------------------------------------


def _endpoint() -> "Endpoint | None":
    import os

    if not os.environ.get("BB_EMBED_MODEL"):
        return None  # without loading what asks models
    from blackboard.runtime.models import Endpoint

    return Endpoint.for_embeddings()


def _store_of(board: "Board", flags: Flags, endpoint: "Endpoint | None" = None) -> "Memory":
    namespace = "public" if flags.public else None
    if endpoint is None:
        return board.memory(flags.store, namespace=namespace)
    return board.memory(
        flags.store, namespace=namespace, embed=endpoint.embed, model=endpoint.model
    )


def _key(memory: "Memory", which: str) -> str:
    return which if "/" in which else f"{memory.prefix}/entries/{which}"


def _absent(key: str) -> CommandError:
    return not_found(f"there is no memory {key}", "See which there are: blackboard memory list")


def _filter(flags: Flags) -> "MemoryFilter":
    from blackboard.cli import values
    from blackboard.client.memory.records import MemoryFilter

    members: dict[str, Any] = {}
    for one in flags.fact or ():
        name, is_given, value = one.partition("=")
        if not is_given:
            raise wrong_usage(f"--fact {one} has no value", "Such as: --fact port=Kiel")
        members[name] = values.parse(value)
    first, last = (
        None if one is None else values.time_of(one) for one in (flags.since, flags.until)
    )
    return MemoryFilter(flags.author, first, last, None, members)


def _content(what: str, *, is_text: bool) -> Any:
    """A text, or a fact: what begins as a JSON object."""
    from blackboard.cli import values

    text = what if what != "-" else values.text_from_stdin().removesuffix("\n")
    return text if is_text or not text.lstrip().startswith("{") else values.parse(text)


def _print(found: "Sequence[Remembered]", flags: Flags) -> None:
    from blackboard.cli import render

    if flags.as_json:
        render.print_json({"memories": render.plain(found)})
    elif found:
        render.print_memories(found)
    else:
        screen.say("no memory was found")
