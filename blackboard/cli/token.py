"""token create, narrow, inspect, revoke, show: rights, and how long they last.

grants: your rights, as the service sees them.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from blackboard.cli import screen
from blackboard.cli.errors import CommandError, Exit, wrong_usage
from blackboard.cli.options import Command, CommandGroup, Flags, SecretCommand, ServiceCommand

if TYPE_CHECKING:
    from blackboard.client.client import Client
    from blackboard.core.access import AccessGrant, Principal
    from blackboard.server.settings import Settings

TTL_HOURS_DEFAULT = 1.0
_HOUR_MS = 3_600_000
_SHOWN_OF_AN_ID = 20

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Make, inspect and revoke tokens.")


class TokenCommand(Command):
    """A command about a token itself, which acts as nobody."""

    shared: ClassVar[Sequence[Any]] = [one for one in ServiceCommand.shared if one.name != "agent"]


@app.command(
    cls=SecretCommand,
    epilog="""\
blackboard token create researcher  # an agent's default rights
blackboard token create auditor --grant 'public/**=read' --grant 'private/**=read'
blackboard token create checker --role reader
blackboard token create planner --board expansion --ttl 8""",
)
def create(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of the agent or person.", show_default=False)
    ],
    grant: Annotated[
        list[str] | None,
        typer.Option(
            "--grant",
            metavar="PATTERN=RIGHTS",
            help="read,write,append,lock,approve,checkpoint,restore,admin or all."
            " Default: an agent's.",
        ),
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(
            "--role", metavar="ROLE", help="agent, reader, approver, operator, or of --roles."
        ),
    ] = None,
    board: Annotated[
        list[str] | None,
        typer.Option("--board", "-b", metavar="NAME", help="On this board only (repeat)."),
    ] = None,
    ttl_hours: Annotated[
        float, typer.Option("--ttl", metavar="HOURS", help="How long it is valid.")
    ] = TTL_HOURS_DEFAULT,
) -> None:
    """Make a token.

    It is written to standard output and not stored. Its holder acts as NAME until it expires.
    """
    from dataclasses import replace

    from blackboard.cli import render as show, values
    from blackboard.integrity import tokens
    from blackboard.server import settings as config
    from blackboard.server.settings import grants_of

    flags = Flags.of(context)
    ttl_ms = values.milliseconds(ttl_hours, "--ttl", unit_ms=_HOUR_MS)
    if not ttl_ms or ttl_ms < 0:
        raise wrong_usage("--ttl must be more than 0 hours")
    if role is not None and grant:
        raise wrong_usage("--role and --grant exclude each other")
    settings = _settings(flags)
    principal = _principal(name, grant or [], board or [])
    if role is not None:
        granted = grants_of(role, name, settings.roles_file)
        principal = replace(principal, grants=granted)
    # Before `secret_of`, which would make a secret that no service has.
    kept = _kept(settings)
    secret = config.secret_of(settings)
    token = tokens.issue(secret, principal, ttl_ms, audience=settings.audience)
    if flags.as_json:
        show.print_json({"token": token, **claims_of(token)})
        return
    screen.answer(token)
    where = "on " + ", ".join(sorted(principal.boards)) if principal.boards else "on every board"
    screen.say(f"{name}, {where}, for {screen.counted(f'{ttl_hours:g}', 'hour')}:")
    for one in principal.grants:
        screen.say(f"  {one.pattern}  {', '.join(sorted(one.rights))}")
    screen.say(f"signed with the secret of {kept}")


def _principal(name: str, grants: list[str], boards: list[str]) -> "Principal":
    from dataclasses import replace

    from blackboard.core import access
    from blackboard.core.path import check_name

    principal = access.agent(name)
    if grants:
        given = access.check_grants(parse_grant(text) for text in grants)
        principal = replace(principal, grants=given)
    return replace(principal, boards=frozenset(check_name(board, "board") for board in boards))


def parse_grant(text: str) -> "AccessGrant":
    """A grant written as `PATTERN=right,right`. Errors: CommandError."""
    from blackboard.core.access import Right, parse_grant as parse
    from blackboard.errors import InvalidRequest

    try:
        return parse(text)
    except InvalidRequest as error:
        raise wrong_usage(
            f"{text!r} is no grant", f"Write PATTERN=RIGHTS, with rights of: {', '.join(Right)}."
        ) from error


def _settings(flags: Flags) -> "Settings":
    """The settings of the selected service."""
    from blackboard.cli import session
    from blackboard.server import settings as config

    given = {
        "data": session.data_of(flags),
        "secret_file": flags.secret_file,
        "roles_file": flags.roles_file,
    }
    return config.load({name: path for name, path in given.items() if path is not None})


def _kept(settings: "Settings") -> str:
    """The location of the secret, which must exist. Errors: CommandError."""
    kept = settings.secret_file or settings.data / "secret"
    if settings.secret is None and not kept.exists():
        raise CommandError(
            "not_found",
            Exit.NOT_FOUND,
            f"there is no secret at {kept}",
            "Run blackboard serve once, or give --data, --secret-file or BLACKBOARD_SECRET.",
        )
    return "BLACKBOARD_SECRET" if settings.secret is not None else str(kept)


_TOKEN = typer.Argument(
    metavar="TOKEN", help="- reads it from standard input. Default: the one in use."
)


def _token(flags: Flags, given: str | None) -> str:
    """The selected token. Errors: CommandError."""
    from blackboard.cli import session, values

    if given == "-":
        return values.text_from_stdin().strip()
    found = given or session.target_of(flags).token
    if found is None:
        raise CommandError(
            "unauthenticated",
            Exit.DENIED,
            "no token is in use",
            "Give one: --token, BLACKBOARD_TOKEN or blackboard context add.",
        )
    return found


@app.command(
    cls=TokenCommand,
    epilog="""\
blackboard token narrow - --name researcher.helper --grant 'public/notes/**=read' < token
blackboard token narrow --ttl 0.1  # the one in use, for six minutes""",
)
def narrow(
    context: typer.Context,
    which: Annotated[str | None, _TOKEN] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Of the sub-agent: the own one, a dot, more."),
    ] = None,
    grant: Annotated[
        list[str] | None,
        typer.Option("--grant", metavar="PATTERN=RIGHTS", help="All that is left (repeat)."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only-board", "--board", "-b", metavar="NAME", help="On this board only (repeat)."
        ),
    ] = None,
    ttl_hours: Annotated[
        float | None, typer.Option("--ttl", metavar="HOURS", help="How long it is valid at most.")
    ] = None,
) -> None:
    """Make a token that allows less.

    This needs neither the service nor its secret. Removed rights cannot be added again.
    """
    from blackboard.cli import render as show, values
    from blackboard.core.access import Narrowing
    from blackboard.core.path import check_name
    from blackboard.integrity import tokens

    flags = Flags.of(context)
    if not (name or grant or only or ttl_hours is not None):
        raise wrong_usage("nothing says what to take away", "Add --grant, for example.")
    ttl_ms = values.milliseconds(ttl_hours, "--ttl", unit_ms=_HOUR_MS)
    if ttl_ms is not None and ttl_ms <= 0:
        raise wrong_usage("--ttl must be more than 0 hours")
    end_ms = None if ttl_ms is None else round(time.time() * 1000) + ttl_ms
    grants = None if grant is None else tuple(parse_grant(text) for text in grant)
    boards = None if only is None else frozenset(check_name(one, "board") for one in only)
    made = tokens.attenuate(_token(flags, which), Narrowing(name, grants, boards, end_ms))
    if flags.as_json:
        show.print_json({"token": made, **claims_of(made)})
    else:
        screen.answer(made)


@app.command(
    cls=TokenCommand,
    epilog="""\
blackboard token inspect - < token
blackboard token inspect  # the one in use""",
)
def inspect(context: typer.Context, which: Annotated[str | None, _TOKEN] = None) -> None:
    """Show the content of a token: its subject, rights and id.

    The token is not verified; blackboard grants has the service verify it.
    """
    flags = Flags.of(context)
    _print_claims(claims_of(_token(flags, which)), as_json=flags.as_json)


@app.command(
    cls=ServiceCommand,
    epilog="""\
blackboard token revoke - < stolen-token
blackboard token revoke --id 4LkT0mYyK3yVtQ1a
blackboard token revoke --all-of researcher  # every token it has been given until now""",
)
def revoke(
    context: typer.Context,
    which: Annotated[
        str | None,
        typer.Argument(metavar="TOKEN", help="- reads it from standard input."),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="Of a token, as inspect shows it (repeat)."),
    ] = None,
    all_of: Annotated[
        str | None, typer.Option("--all-of", metavar="NAME", help="All tokens of an agent.")
    ] = None,
) -> None:
    """Revoke tokens, and those narrowed from them, at once.

    Connections that use them are closed; no further commit or delivery is made with them.
    """
    from blackboard.cli import render as show, session

    flags = Flags.of(context)
    names, until_ms = [checked_id(text) for text in ids or []], None
    if which is not None:
        claims = claims_of(_token(flags, which))
        names.append(claims["ids"][-1])
        # A revocation of this token alone need not be kept for longer than the token is valid.
        until_ms = claims["expires_at_ms"] if not ids and all_of is None else None

    async def run(client: "Client") -> int:
        return await client.revoke(*names, principal=all_of, until_ms=until_ms)

    count = session.with_client(flags, run)
    if flags.as_json:
        show.print_json({"revoked": count})
    else:
        screen.say(f"revoked; {screen.counted(count, 'revocation')} in force")


def checked_id(text: str) -> str:
    """Return `text` if it can be the id of a token. Errors: CommandError.

    The error shows only the beginning, which all tokens have in common, because a token may be
    given by mistake.
    """
    from blackboard.integrity import tokens

    if not tokens.is_id(text):
        raise wrong_usage(
            f"--id: {screen.shortened(text, _SHOWN_OF_AN_ID)!r} cannot be the id of a token",
            "It has 16 characters, that of a narrowed token 8 or 12."
            " blackboard token inspect shows it.",
        )
    return text


@app.command(
    "show",
    cls=TokenCommand,
    epilog="""\
blackboard token show  # of the token that commands use now
blackboard token show --reveal  # the token itself""",
)
def show_token(
    context: typer.Context,
    reveal: Annotated[bool, typer.Option("--reveal", help="Print the token itself.")] = False,
) -> None:
    """Show the token in use: its subject, rights and expiry."""
    flags = Flags.of(context)
    token = _token(flags, None)
    claims = claims_of(token)
    if reveal and flags.as_json:
        from blackboard.cli import render as show

        show.print_json({"token": token, **claims})
    elif reveal:
        screen.answer(token)
    else:
        _print_claims(claims, as_json=flags.as_json)


def _print_claims(claims: dict[str, Any], *, as_json: bool) -> None:
    from blackboard.cli import render as show

    if as_json:
        show.print_json(claims)
        return
    now = show.now_ms()
    screen.answer(f"name     {claims['principal']}")
    screen.answer(f"boards   {', '.join(claims['boards']) or 'all'}")
    expired = "  (expired)" if claims["expires_at_ms"] <= now else ""
    screen.answer(f"expires  {show.clock(claims['expires_at_ms'], now)}{expired}")
    screen.answer(f"id       {claims['ids'][-1]}")
    for pattern, rights in claims["grants"]:
        screen.answer(f"grant    {pattern}  {', '.join(rights)}")


def claims_of(token: str) -> dict[str, Any]:
    """The unverified claims of a token: only its service can verify them.

    Errors: CommandError when it is not a token.
    """
    from blackboard.errors import Unauthenticated
    from blackboard.integrity import tokens

    try:
        found = tokens.unverified(token)
    except Unauthenticated as error:
        raise CommandError(
            "unauthenticated", Exit.DENIED, "this is not a token", "Was all of it copied?"
        ) from error
    assert found.credential is not None
    return {
        "principal": found.name,
        "boards": sorted(found.boards),
        "grants": [[g.pattern, sorted(g.rights)] for g in found.grants],
        "expires_at_ms": found.expires_at_ms,
        "ids": list(found.credential.ids),
    }


grants_app = typer.Typer()


@grants_app.command(
    cls=ServiceCommand,
    rich_help_panel="Access",
    epilog="""\
blackboard grants  # your token's rights, as the service sees them
blackboard grants public/plan/budget  # your rights on that key
blackboard grants private/bob/notes --as bob""",
)
def grants(
    context: typer.Context,
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="Only the rights on this key.")
    ] = None,
) -> None:
    """Show your rights, by pattern or on one key."""
    from blackboard.cli import render as show, session
    from blackboard.core.access import Right, allows
    from blackboard.core.path import check_key

    flags = Flags.of(context)

    async def ask(client: "Client") -> "Principal":
        return await client.whoami()

    found = session.with_client(flags, ask)
    rows = [[g.pattern, sorted(g.rights)] for g in found.grants]
    if key is not None:
        rows = [[key, [r.value for r in Right if allows(found.grants, r, check_key(key))]]]
    if flags.as_json:
        show.print_json({"principal": found.name, "boards": sorted(found.boards), "grants": rows})
        return
    screen.answer(f"{found.name}, on {', '.join(sorted(found.boards)) or 'every board'}")
    for pattern, rights in rows:
        screen.answer(f"  {pattern}  {', '.join(rights) or 'nothing'}")
