"""The documentation is true: its examples run, its links lead somewhere, its tables are the code's.

Each rule is a function that lists its offenders, and is itself tried on bad and good snippets.
"""

import dataclasses
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

import blackboard
from blackboard import errors, limits
from blackboard.cli.main import app
from blackboard.core.path import check_key, parse_pattern
from tests.snippets import blocks, free_names, misspelt_marks, run_page
from tests.source_tree import ROOT, Source, sources
from tools import api_page, limits_page, site_map

PAGES = [
    *(Source(path.name, path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("*.md"))),
    *sources("docs", suffix=".md"),
]
BY_PATH = {page.path: page for page in PAGES}
IDS = [page.path for page in PAGES]
ELSEWHERE = {
    f"docs/howto/{path.parent.name.replace('-', '_')}.md"
    for path in (ROOT / "tests" / "frameworks").glob("*/requirements.in")
}
"""Pages of frameworks that are not in .venv: `make test-frameworks` runs their examples."""
WALKED = "docs/quickstart/"
"""Pages that tests/acceptance/test_quickstarts.py follows as a whole, with files and commands."""
HERE = [page for page in PAGES if page.path not in ELSEWHERE and not page.path.startswith(WALKED)]
_CODE = re.compile(r"^```.*?^```\s*$|^ {4}.*$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"^ {4}.*$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_ITALIC = re.compile(r"(?<![*\w])\*([^*\s][^*\n]*)\*(?![*\w])")
_TERM = re.compile(r"^\*\*(.+?)\*\*:", re.MULTILINE)
TERMS_MAX = 75
_ROW = re.compile(r"^\|(.+)\|\s*$", re.MULTILINE)


# --- what a page holds ----------------------------------------------------------------------------


def prose(page: Source) -> str:
    """The page without its code."""
    return _CODE.sub("", page.text)


def code(page: Source) -> str:
    """The page's code, inline and in blocks."""
    return "\n".join(_CODE.findall(page.text))


def anchors(page: Source) -> set[str]:
    """What a link can point to within the page, spelt as GitHub does."""
    fenced = re.sub(r"^```.*?^```\s*$", "", page.text, flags=re.DOTALL | re.MULTILINE)
    texts = (re.sub(r"[^\w\- ]", "", title.lower()) for title in _HEADING.findall(fenced))
    return {text.replace(" ", "-") for text in texts}


def rows(page: Source, header: str) -> list[list[str]]:
    """The cells of the table whose first line is `header`, without header and rule."""
    _, found, rest = page.text.partition(header + "\n")
    assert found, f"{page.path} has no table {header}"
    table = rest.partition("\n\n")[0]
    return [[cell.strip() for cell in row.split(" | ")] for row in _ROW.findall(table)[1:]]


def quoted(cell: str) -> list[str]:
    """The words of a table's cell that stand in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


# --- rules ----------------------------------------------------------------------------------------


def broken_links(page: Source, pages: dict[str, Source]) -> list[str]:
    """Relative links to a file or a heading that does not exist."""
    here = (ROOT / page.path).parent
    broken = []
    for link in _LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (here / path).resolve() if path else ROOT / page.path
        known = pages.get(target.relative_to(ROOT).as_posix())
        good = (known and anchor in anchors(known)) if anchor else known or target.exists()
        if not good:
            broken.append(f"{page.path}: {link}")
    return broken


def unexplained_terms(page: Source, glossary: Source) -> list[str]:
    """Words in italics that the glossary does not have, in the singular or the plural."""
    known = set(_TERM.findall(glossary.text))
    known |= {f"{term}s" for term in known} | {f"{term[:-1]}ies" for term in known}
    return [f"{page.path}: {t}" for t in _ITALIC.findall(prose(page)) if t.lower() not in known]


def unmentioned(names: Iterable[str], text: str) -> list[str]:
    """Names that do not stand in `text` as whole words."""
    words = set(re.findall(r"\w+", text))
    return sorted(set(names) - words)


def wrong_error_rows(
    table: list[list[str]], known: Iterable[type[errors.BlackboardError]]
) -> list[str]:
    """Differences between a table of class, code and fields and the classes themselves."""
    written = {(row[0], row[1], *quoted(row[2])) for row in table}
    real = {
        (
            f"`{kind.__name__}`",
            f"`{kind.code}`",
            *(field.name for field in dataclasses.fields(kind)),
        )
        for kind in known
    }
    return [" ".join(row) for row in sorted(written ^ real)]


def wrong_rows(table: list[list[str]], holds: Callable[[list[str]], bool]) -> list[str]:
    """Rows whose column with yes or no says something else than the code."""
    wrong = []
    for row in table:
        says = next(cell for cell in row if cell in ("yes", "no")) == "yes"
        if says != holds([quoted(cell)[0] for cell in row if quoted(cell)]):
            wrong.append(" | ".join(row))
    return wrong


def is_key(cells: list[str]) -> bool:
    """Whether the first cell is a valid key."""
    try:
        check_key(cells[0])
    except errors.Rejected:
        return False
    return True


def matches(cells: list[str]) -> bool:
    """Whether the pattern of the first cell matches the key of the second."""
    return parse_pattern(cells[0]).matches(check_key(cells[1]))


def command_lines(page: Source) -> list[str]:
    """What is to be typed into a shell: in shell blocks, and indented by four."""
    shell = "".join(block.text for block in blocks(page) if block.language in ("", "sh", "bash"))
    indented = "".join(f"{line[4:]}\n" for line in _INDENTED.findall(page.text))
    lines = (shell + indented).replace("\\\n", " ").splitlines()
    return [line for line in lines if re.match(r"blackboard [\w-]", line)]


def unknown_commands(page: Source, root: Any) -> list[str]:
    """Lines `blackboard ...` with a command or an option that there is not."""
    problems = ((line, _unknown_word(line, root)) for line in command_lines(page))
    return [f"{page.path}: {line}: {word}" for line, word in problems if word]


@cache
def program() -> Any:
    """The command line, with all of its commands."""
    return get_command(app)


def _unknown_word(line: str, command: Any) -> str | None:
    """The first word that is neither a command where one is needed nor an option it has."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    typed = (word or " " for word in lexer)
    # Behind a lone -- stands somebody else's command.
    words = list(takewhile(lambda word: word[0] not in "|&;<>" and word != "--", typed))[1:]
    while words and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return None if words[0].startswith("-") else words[0]
        command = command.commands[words.pop(0)]
    found = command.get_params(typer.Context(command))
    options = {name for p in found for name in [*p.opts, *p.secondary_opts]}
    given = (word.partition("=")[0] for word in words if word.startswith("-") and word != "-")
    return next((word for word in given if word not in options), None)


def public_methods(kind: type) -> list[str]:
    """What a class offers by name."""
    return [name for name in vars(kind) if not name.startswith("_")]


# --- the pages ------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader tries the examples, and where temporary directories are made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("page", HERE, ids=[page.path for page in HERE])
async def test_the_examples_run(page: Source, folder: Path) -> None:
    """Every Python block of every page does what the text promises."""
    await run_page(page, folder)


async def test_the_example_of_a_restore_can_be_run_again(folder: Path) -> None:
    """Who tries it twice, in one directory, sees the same twice."""
    [block] = [b for b in blocks(BY_PATH["README.md"]) if b.runs and ".restore(" in b.text]
    page = Source("README.md", f"```python\n{block.text}```\n\n```text output\n{block.output}```\n")
    for _ in range(2):
        assert await run_page(page, folder) == 1


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_the_links_lead_somewhere(page: Source) -> None:
    """Every relative link, with its heading."""
    assert broken_links(page, BY_PATH) == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_terms_are_in_the_glossary(page: Source) -> None:
    """Italics are kept for the project's words."""
    assert unexplained_terms(page, BY_PATH["docs/glossary.md"]) == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_no_example_is_hidden_by_a_slip(page: Source) -> None:
    """A block is either run or marked, and the mark is spelt right."""
    assert misspelt_marks(page) == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_exist(page: Source) -> None:
    """What is to be typed into a shell is a command with options that it has."""
    assert unknown_commands(page, program()) == []


def test_every_page_is_in_the_map() -> None:
    """All that docs/ holds, once: docs/index.md is also the navigation of the site."""
    mapped = [page.path for page in site_map.pages(ROOT)]
    here = [path for path in BY_PATH if path.startswith("docs/") and path != site_map.MAP]
    assert sorted(mapped) == sorted(["CHANGELOG.md", "CONTRIBUTING.md", *here])


def test_every_page_says_what_it_is_about() -> None:
    """In the map; a decision does so by its title."""
    silent = [page.path for page in site_map.pages(ROOT) if not page.about]
    assert [path for path in silent if not path.startswith("docs/decisions/")] == []


def test_the_page_of_names_is_what_the_code_says() -> None:
    """Written by tools/api_page.py, and not changed by hand or left behind."""
    assert BY_PATH["docs/api.md"].text == api_page.page()


def test_every_public_name_is_on_the_page_of_names() -> None:
    """However the page is made: what is exported, and what its main classes can do."""
    page = BY_PATH["docs/api.md"].text
    for module in (blackboard, blackboard.ops, blackboard.types, blackboard.errors):
        titles = [f"### {module.__name__}.{name}\n" for name in module.__all__]
        assert [title for title in titles if title not in page] == []
    for kind in (blackboard.Board, blackboard.Client, blackboard.Step, blackboard.types.Watch):
        titles = [f"#### {kind.__name__}.{method}\n" for method in public_methods(kind)]
        assert [title for title in titles if title not in page] == []


def test_every_error_is_described() -> None:
    """Class, code and fields as in blackboard/errors, and a section or a row for each."""
    table = rows(BY_PATH["docs/errors.md"], "| class | code | fields | when |")
    assert wrong_error_rows(table, errors.BY_CODE.values()) == []
    retryable = [kind.__name__ for kind in errors.BY_CODE.values() if kind.retryable]
    assert sorted(retryable) == ["OutcomeUnknown", "Overloaded", "RateLimited", "Unavailable"]


def test_the_page_of_limits_is_the_table_of_limits() -> None:
    """Written by tools/limits_page.py, and not changed by hand or left behind."""
    assert BY_PATH["docs/limits.md"].text == limits_page.current()


def test_every_limit_has_its_value_and_reason() -> None:
    """Each constant and each field of limits.py, however the page is made."""
    page = BY_PATH["docs/limits.md"].text
    constants = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert len(constants) > 50
    for name, value in constants.items():
        if isinstance(value, int):
            row = rf"^\| `{name}` \| {value:,}( \(.+\))? \|( .*\|)? .+ \|$"
            assert re.search(row, page, re.MULTILINE), name
    for group in dataclasses.fields(limits.DEFAULT):
        for field in dataclasses.fields(getattr(limits.DEFAULT, group.name)):
            assert f"\n| `{field.name.upper()}` | " in page.split(f"### `limits.{group.name}`")[1]


def test_the_tables_of_keys_and_patterns_are_right() -> None:
    """Each row is tried."""
    keys = rows(BY_PATH["docs/keys.md"], "| key | valid? | because |")
    patterns = rows(BY_PATH["docs/keys.md"], "| pattern | key | matches? |")
    assert len(keys) > 5
    assert len(patterns) > 5
    assert wrong_rows(keys, is_key) == []
    assert wrong_rows(patterns, matches) == []


def test_the_glossary_is_in_order_and_says_each_word_once() -> None:
    """So that one looks in one place."""
    terms = _TERM.findall(BY_PATH["docs/glossary.md"].text)
    assert terms == sorted(set(terms), key=str.lower)


def test_the_glossary_stays_short() -> None:
    """A word that needs no explanation, or is explained where it is used, is not in it."""
    assert len(_TERM.findall(BY_PATH["docs/glossary.md"].text)) <= TERMS_MAX


def test_decisions_are_numbered_without_a_gap() -> None:
    """0001, 0002 ..."""
    names = sorted(Path(path).name for path in BY_PATH if path.startswith("docs/decisions/"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


# --- the rules themselves -------------------------------------------------------------------------


def page_of(text: str, path: str = "docs/here.md") -> Source:
    """A page with that text."""
    return Source(path, text)


GOOD_BLOCKS = [
    "```python\nassert (await board.put('public/a', 1)).revision == 1\n```\n",
    "```python\nasync with blackboard.connect(url, token=token) as client:\n    pass\n```\n",
    "```python\nimport asyncio\nasyncio.run(asyncio.sleep(0))\n```\n",
    "```python\nx = 1\n```\nand\n```python\nprint(x)\n```\n\n```text output\n1\n```\n",
    "```python no-run\nraise OSError\n```\n",
    "```text\nraise OSError\n```\n",
]
BAD_BLOCKS = [
    "```python\nassert (await board.put('public/a', 1)).revision == 2\n```\n",
    "```python\nawait board.put('a', 1)\n```\n",
    "```python\nx = 1\n```\n```python\nprint(x)\n```\n```text output\n2\n```\n",
    "```python\nprint(undefined)\n```\n",
    "```python\nblackboard.no_such_name\n```\n",
    "```python\nif\n```\n",
    "```python\nx = 1\n",
]


@pytest.mark.parametrize("text", GOOD_BLOCKS)
async def test_good_examples_pass(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Await at the top, loops of one's own, names kept between blocks, output compared."""
    monkeypatch.chdir(tmp_path)
    await run_page(page_of(text), tmp_path)


@pytest.mark.parametrize("text", BAD_BLOCKS)
async def test_bad_examples_fail(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example that raises, prints something else, does not parse or does not end."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AssertionError, AttributeError, NameError, SyntaxError, errors.Rejected)):
        await run_page(page_of(text), tmp_path)


async def test_a_failure_names_the_line_of_the_page(tmp_path: Path) -> None:
    """The traceback points into the page."""
    with pytest.raises(ZeroDivisionError) as raised:
        await run_page(page_of("# Title\n\n```python\n1 / 0\n```\n"), tmp_path)
    assert (raised.traceback[-1].lineno + 1, str(raised.traceback[-1].path)[-12:]) == (
        4,
        "docs/here.md",
    )


def test_blocks_are_distinguished() -> None:
    """Language, marks, line, and whether it runs."""
    found = blocks(page_of("a\n```python no-run\nx\n```\n```sh\ny\n```\n"))
    assert [(b.language, b.marks, b.line, b.text, b.runs) for b in found] == [
        ("python", ("no-run",), 3, "x\n", False),
        ("sh", (), 6, "y\n", False),
    ]


def test_free_names_are_those_that_a_reader_must_have() -> None:
    """Assigned names, parameters and targets of `with` are the block's own."""
    text = "async with open(url) as client:\n    board = client\ndef f(token): return token + more"
    assert free_names(text) == {"open", "url", "more"}


def test_misspelt_marks_are_found() -> None:
    """A slip in `no-run`, and a mark on another language."""
    text = "```python norun\n```\n```python no-run\n```\n```sh no-run\n```\n"
    assert len(misspelt_marks(page_of(text))) == 2


def test_broken_links_are_found() -> None:
    """A missing file, a missing heading; code, other sites and good ones pass."""
    text = (
        "# Here `it` is\n[a](missing.md) [b](errors.md#conflict) [c](errors.md#nothing)\n"
        "[d](https://example.org/x) `[e](f.md)` [g](#here-it-is) [h](#there) [i](../README.md)\n"
    )
    assert broken_links(page_of(text), BY_PATH | {"docs/here.md": page_of(text)}) == [
        "docs/here.md: missing.md",
        "docs/here.md: errors.md#nothing",
        "docs/here.md: #there",
    ]


def test_unexplained_terms_are_found() -> None:
    """Plurals are known; bold, lists and products are no terms."""
    glossary = page_of("**board**: x\n**entry**: y\n")
    text = "*boards* and *Entries*, **bold**, a *flange*\n* item\n* item\n2*3*4\n"
    assert unexplained_terms(page_of(text), glossary) == ["docs/here.md: flange"]


def test_unmentioned_names_are_found() -> None:
    """Only whole words count."""
    assert unmentioned(["open", "Put"], "`reopen` `Put(key)`") == ["open"]


def test_wrong_rows_of_errors_are_found() -> None:
    """A missing error, a wrong code, a missing field."""
    kinds = [errors.Compacted, errors.Unauthenticated]
    good = [
        ["`Compacted`", "`compacted`", "`revision`, `oldest`"],
        ["`Unauthenticated`", "`unauthenticated`", "`reason`"],
    ]
    assert wrong_error_rows(good, kinds) == []
    assert len(wrong_error_rows(good[:1], kinds)) == 1
    assert len(wrong_error_rows([good[0], ["`Unauthenticated`", "`no`", "`reason`"]], kinds)) == 2
    assert len(wrong_error_rows([["`Compacted`", "`compacted`", "`oldest`"], good[1]], kinds)) == 2


def test_wrong_rows_of_keys_are_found() -> None:
    """Yes for a bad key, no for a match."""
    assert wrong_rows([["`public/a`", "yes", ""], ["`plan`", "no", ""]], is_key) == []
    assert len(wrong_rows([["`public`", "yes", ""]], is_key)) == 1
    assert len(wrong_rows([["`public/**`", "`public/a`", "no"]], matches)) == 1


def test_unknown_commands_are_found() -> None:
    """A command, a sub-command, an option; prose that begins with the word is no command."""
    text = (
        "```sh\nblackboard fly\nblackboard get k --unknown\nblackboard ls | sort --x\n```\n"
        "    blackboard token make x\n    blackboard get public/a --json  # -- what\n"
        "blackboard prose --x\n    blackboard get k \\\n        --bad\n"
    )
    found = [line.rpartition(": ")[2] for line in unknown_commands(page_of(text), program())]
    assert found == ["fly", "--unknown", "make", "--bad"]


def test_the_page_of_limits_shows_units_that_are_exact() -> None:
    """1536 bytes are not 1 KiB, and a count has no unit."""
    row = limits_page.Limit("numbers", "X_BYTES_MAX", 1536, "why")
    assert limits_page.shown(row) == "1,536"
    assert limits_page.shown(dataclasses.replace(row, value=2048)) == "2,048 (2 KiB)"
    assert limits_page.shown(dataclasses.replace(row, name="X_MS", value=90_000)) == "90,000 (90 s)"
    assert limits_page.shown(dataclasses.replace(row, name="X_MAX", value=2048)) == "2,048"


def test_limits_are_read_from_source_with_their_reasons() -> None:
    """The string below a constant is its reason; aliases of types are no limits."""
    source = '# --- keys ---\nA = str\n"""no"""\nKEY_BYTES_MAX: Final = 1\n"""Long\n  text."""\n'
    (found,) = limits_page.limits(source)
    assert (found.section, found.name, found.reason) == ("keys", "KEY_BYTES_MAX", "Long text.")
