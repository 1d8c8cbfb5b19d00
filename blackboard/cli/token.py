"""token create, show: who may do what."""

import base64
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blackboard.cli import screen
from blackboard.cli.exits import CommandError, Exit, wrong_usage
from blackboard.cli.options import Flags, Group, ReadCommand, SecretCommand

if TYPE_CHECKING:
    from blackboard.service.access import Grant, Principal

TTL_HOURS_DEFAULT = 24.0
_HOUR_MS = 3_600_000

app = typer.Typer(cls=Group, no_args_is_help=True, help="Make tokens, and see what one allows.")


@app.command(
    cls=SecretCommand,
    epilog="""\
blackboard token create researcher  # what every agent may do
blackboard token create auditor --grant 'public/**=read' --grant 'private/**=read'
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
            help="read,write,append,lock,checkpoint,restore,admin or all. Default: an agent's.",
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

    It goes to standard output and is kept nowhere. Whoever has it is NAME until it expires.
    """
    from blackboard.cli import show
    from blackboard.net import tokens

    flags = Flags.of(context)
    if not ttl_hours > 0:
        raise wrong_usage("--ttl must be more than 0 hours")
    principal = _principal(name, grant or [], board or [])
    secret, kept = _secret(flags)
    token = tokens.issue(secret, principal, round(ttl_hours * _HOUR_MS))
    if flags.as_json:
        show.print_json({"token": token, **claims_of(token)})
        return
    print(token)
    where = "on " + ", ".join(sorted(principal.boards)) if principal.boards else "on every board"
    screen.say(f"{name}, {where}, for {ttl_hours:g} hours:")
    for one in principal.grants:
        screen.say(f"  {one.pattern}  {', '.join(sorted(one.rights))}")
    screen.say(f"signed with the secret of {kept}")


def _principal(name: str, grants: list[str], boards: list[str]) -> "Principal":
    from dataclasses import replace

    from blackboard.core.path import check_name
    from blackboard.service import access

    principal = access.agent(name)
    if grants:
        given = access.check_grants(parse_grant(text) for text in grants)
        principal = replace(principal, grants=given)
    return replace(principal, boards=frozenset(check_name(board, "board") for board in boards))


def parse_grant(text: str) -> "Grant":
    """A grant written as `PATTERN=right,right`. Errors: CommandError."""
    from blackboard.service.access import ALL_RIGHTS, Grant, Right

    pattern, equals, names = text.partition("=")
    known = {str(right) for right in Right}
    rights = known if names == "all" else set(names.split(","))
    if not equals or not rights <= known:
        raise wrong_usage(
            f"{text!r} is no grant", f"Write PATTERN=RIGHTS, with rights of: {', '.join(Right)}."
        )
    return Grant(pattern, ALL_RIGHTS if names == "all" else frozenset(map(Right, rights)))


def _secret(flags: Flags) -> tuple[str, str]:
    """The secret of the service that is meant, and where it is kept; it is never made here."""
    from blackboard.cli import session
    from blackboard.net import config

    given = {"data": session.data_of(flags), "secret_file": flags.secret_file}
    settings = config.load({name: path for name, path in given.items() if path is not None})
    kept = settings.secret_file or settings.data / "secret"
    if settings.secret is None and not kept.exists():
        raise CommandError(
            "not_found",
            Exit.NOT_FOUND,
            f"there is no secret at {kept}",
            "Run blackboard serve once, or give --data, --secret-file or BLACKBOARD_SECRET.",
        )
    where = "BLACKBOARD_SECRET" if settings.secret is not None else str(kept)
    return config.secret_of(settings), where


@app.command(
    "show",
    cls=ReadCommand,
    epilog="""\
blackboard token show  # of the token that commands use now
blackboard token show --reveal  # the token itself""",
)
def show_token(
    context: typer.Context,
    reveal: Annotated[bool, typer.Option("--reveal", help="Print the token itself.")] = False,
) -> None:
    """Show whose token is in use, what it allows and until when."""
    from blackboard.cli import session, show

    flags = Flags.of(context)
    token = session.target_of(flags).token
    if token is None:
        raise CommandError(
            "unauthenticated",
            Exit.DENIED,
            "no token is in use",
            "Give one: --token, BLACKBOARD_TOKEN or blackboard context add.",
        )
    claims = claims_of(token)
    if reveal:
        print(token)
    elif flags.as_json:
        show.print_json(claims)
    else:
        now = show.now_ms()
        print(f"name     {claims['principal']}")
        print(f"boards   {', '.join(claims['boards']) or 'all'}")
        expired = "  (expired)" if claims["expires_at_ms"] <= now else ""
        print(f"expires  {show.clock(claims['expires_at_ms'], now)}{expired}")
        for pattern, rights in claims["grants"]:
            print(f"grant    {pattern}  {', '.join(rights)}")


def claims_of(token: str) -> dict[str, Any]:
    """What a token says of itself, unverified: only its service can tell whether it is true.

    Errors: CommandError when it is no token.
    """
    try:
        middle = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
        return {
            "principal": claims["sub"],
            "boards": claims["boards"],
            "grants": claims["grants"],
            "expires_at_ms": claims["exp"] * 1000,
        }
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise CommandError(
            "unauthenticated", Exit.DENIED, "what is in use as a token is none"
        ) from error
