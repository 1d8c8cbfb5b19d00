"""Tokens on the command line: made of a role, narrowed, inspected, revoked."""

from tests.acceptance.shell import Running, Shell

DENIED = ("access_denied", "1")
"""The end of a row of the audit."""


def test_a_token_is_narrowed_used_and_revoked(shell: Shell, service: Running) -> None:
    """The helper may less than its agent, and both end together."""
    token = shell.out("token", "create", "ada").strip()
    grant = ["--grant", "public/notes/**=read"]
    narrow = shell.out("token", "narrow", "-", "--name", "ada.helper", *grant, given=token).strip()
    told = shell.json("token", "inspect", narrow)
    assert (told["principal"], told["grants"]) == ("ada.helper", [["public/notes/**", ["read"]]])
    assert shell.json("grants", "public/notes/1", "--token", narrow)["grants"] == [
        ["public/notes/1", ["read"]]
    ]
    shell.run("set", "public/notes/1", "7", "--token", token)
    assert shell.out("get", "public/notes/1", "--token", narrow).strip() == "7"
    shell.error("set", "public/notes/1", "8", "--token", narrow, code=5)
    wide = shell.error("token", "narrow", narrow, "--grant", "**=all", code=2)
    assert wide["field"] == "grants"
    assert shell.run("token", "revoke", token).stderr == "revoked; 1 revocation in force\n"
    row = shell.out("audit").splitlines()[0].split("\t")
    assert (len(row), row[1:]) == (7, ["ada@helper", "commit", "main", "public/notes/1", *DENIED])
    for gone in (token, narrow):
        error = shell.error("get", "public/notes/1", "--token", gone, code=5)
        assert gone not in str(error)


def test_a_token_is_made_of_a_role(shell: Shell, service: Running) -> None:
    """One of a file, one that is built in; not together with grants."""
    (shell.home / "roles.toml").write_text('[auditor]\ngrants = ["private/**=read"]\n')
    made = shell.json("token", "create", "eve", "--role", "auditor", "--roles", "roles.toml")
    assert made["grants"] == [["private/**", ["read"]]]
    shell.environ["BLACKBOARD_ROLES_FILE"] = "roles.toml"
    again = shell.json("token", "create", "eve", "--role", "auditor")
    assert (again["grants"], again["ids"] != made["ids"]) == (made["grants"], True)
    reader = shell.json("token", "create", "eve", "--role", "reader")["token"]
    told = shell.error("set", "public/a", "1", "--token", reader, code=3)
    assert "no board" in told["message"]  # a reader makes none
    shell.run("set", "public/a", "1")
    shell.error("set", "public/a", "2", "--token", reader, code=5)
    shell.error("token", "create", "eve", "--role", "king", code=2)
    shell.error("token", "create", "eve", "--role", "reader", "--grant", "**=all", code=2)
