"""Memories on the command line: real processes, a real service, a real service of embeddings."""

import pytest

from blackboard.cli.errors import Exit
from tests.acceptance.embedding_service import embedding_service
from tests.acceptance.shell import Shell
from tests.acceptance.test_cli import all_examples

OURS = [line for line in all_examples() if "blackboard memory" in line]
SHIPS = '{"text": "Ships leave on Monday", "port": "Kiel"}'


@pytest.mark.usefixtures("service")
def test_memories_are_kept_found_shown_and_forgotten(shell: Shell) -> None:
    """By words; each as a person and as a program sees it."""
    shell.run("set", "public/mail", "Invoices in euros, please.")
    kept = shell.run("memory", "remember", "The customer pays in euros", "--source", "public/mail")
    key = "private/operator/~memory/main/entries/0000000000"
    assert (kept.stdout, "BB_EMBED_MODEL" in kept.stderr) == (f"{key}\n", True)
    ships = shell.json("memory", "remember", SHIPS, "--name", "ships")["key"]
    assert ships.endswith("/entries/ships")
    [found] = shell.json("memory", "search", "customers")["memories"]
    assert (found["key"], found["sources"], found["author"]) == (key, ["public/mail"], "operator")
    searched = shell.run("memory", "search", "ship", "--fact", "port=Kiel")
    assert searched.stdout.split("\t")[0::4] == ["ships", "Ships leave on Monday\n"]
    assert "BB_EMBED_MODEL" in searched.stderr
    assert "BB_EMBED_MODEL" not in shell.run("memory", "search", "ship", "--words").stderr
    assert "no memory" in shell.run("memory", "search", "ship", "--fact", "port=Rostock").stderr
    listed = shell.out("memory", "list", "--author", "operator", "--since", "2026-01-01")
    assert [row.split("\t")[0] for row in listed.splitlines()] == ["ships", "0000000000"]
    assert "public/mail" in shell.out("memory", "show", "0000000000")
    assert shell.json("memory", "show", ships)["fact"]["port"] == "Kiel"
    assert shell.json("memory", "list", "--as", "ann") == {"memories": []}
    shell.run("memory", "remember", "{1", "--string", "--public", "--as", "ann")
    assert shell.json("memory", "list", "--public")["memories"][0]["text"] == "{1"
    revision = str(shell.json("memory", "show", "ships")["revision"])
    assert shell.out("memory", "forget", "ships", "0000000000") == "2 memories forgotten\n"
    assert "no memory" in shell.run("memory", "forget", "ships", code=Exit.NOT_FOUND).stderr
    shell.error("memory", "show", "ships", code=Exit.NOT_FOUND)
    assert shell.json("memory", "show", "ships", "--at", revision)["fact"]["port"] == "Kiel"


@pytest.mark.usefixtures("service")
def test_by_meaning_with_a_service_of_embeddings(shell: Shell) -> None:
    """One model for a store; another one is refused, until the store is embedded again."""
    shell.run("memory", "remember", "copper price")
    with embedding_service() as embedder:
        shell.environ |= {"BB_EMBED_MODEL": "toy", "OPENAI_BASE_URL": embedder.url}
        shell.environ |= {"OPENAI_API_KEY": "sk-1", "no_proxy": "*"}
        done = shell.json("memory", "reembed")
        assert (done, embedder.keys[-1]) == ({"embedded": 1, "model": "toy"}, "Bearer sk-1")
        assert shell.run("memory", "remember", "a walk in the woods", "-b", "main").stderr == ""
        found = shell.json("memory", "search", "price of copper")["memories"]
        assert [one["text"] for one in found] == ["copper price", "a walk in the woods"]
        assert found[0]["similarity"] > found[1]["similarity"]
        assert {one["model"] for one in embedder.asked} == {"toy"}
        asked = len(embedder.asked)
        shell.run("memory", "search", "copper", "--words")
        assert len(embedder.asked) == asked
        shell.environ["BB_EMBED_MODEL"] = "other"
        refused = shell.error("memory", "remember", "copper fell", code=Exit.ERROR)
        assert (refused["code"], "toy" in refused["wanted"]) == ("type_mismatch", True)
        embedder.instead = 503, b"overloaded"
        failed = shell.error("memory", "search", "copper", code=Exit.ERROR)
        assert (failed["code"], failed["status"]) == ("model_failed", 503)
        assert "sk-1" not in str(failed)
    assert len(shell.json("memory", "list")["memories"]) == 2
    del shell.environ["BB_EMBED_MODEL"]
    assert "BB_EMBED_MODEL" in shell.run("memory", "reembed", code=Exit.USAGE).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["search", " "], 2, "text"),
        (["search", "x", "--limit", "0"], 2, "limit"),
        (["search", "x", "--fact", "port"], 2, "no value"),
        (["list", "--since", "yesterday"], 2, "no time"),
        (["list", "--store", "a/b"], 2, "store"),
        (["remember", "{1"], 2, "not JSON"),
        (["remember", "x", "--ttl", "0"], 2, "--ttl"),
        (["remember", "x", "--name", "7"], 2, "index"),
        (["remember", "x", "--source", "public/none"], 2, "absent"),
        (["forget", "public/plan"], 2, "no memory of this store"),
        (["show", "none"], 3, "there is no memory"),
    ],
)
def test_failures_are_explained_in_words(
    served: Shell, arguments: list[str], code: int, words: str
) -> None:
    """An exit code, a readable line on stderr, no traceback, nothing on stdout."""
    done = served.run("memory", *arguments, code=code)
    assert words in " ".join(done.stderr.split())
    assert done.stdout == ""


@pytest.mark.usefixtures("service")
def test_the_examples_in_the_help_work(shell: Shell) -> None:
    """Each is typed as it stands, after what it needs."""
    with embedding_service() as embedder:
        shell.environ |= {"OPENAI_BASE_URL": embedder.url, "no_proxy": "*"}
        shell.run("set", "public/mail", "Invoices in euros, please.")
        for line in sorted(OURS, key=lambda line: ("forget" in line, "remember" not in line)):
            with shell.script(line.partition(" | jq")[0]) as script:
                code, _, err = script.end()
            assert (code, "Traceback" in err) == (0, False), f"{line}: {err}"
