"""What a log is, what one reader may see of an entry, and how entries become one."""

import pytest
from hypothesis import given, strategies as st

from blackboard.core.commit import (
    BRANCH,
    RESTORE,
    Change,
    ChangeKind,
    CommitId,
    Entry,
    Epoch,
    Head,
    Lease,
    LogEntry,
    Seed,
)
from blackboard.core.history import (
    check_seed,
    check_sequence,
    coalesce,
    cost_of,
    excess,
    portions,
    visible,
)
from blackboard.core.path import parse_patterns
from blackboard.errors import Corrupt, InvalidRequest

ALL = parse_patterns(["**"])


def entry(
    revision: int, *changes: Change, epoch: Epoch | None = None, based_on: tuple[str, ...] = ()
) -> LogEntry:
    """A log entry by ada, whose commit computed one secret."""
    return LogEntry(
        revision,
        1_000 + revision,
        CommitId("ada", 3, "incarnation", 7),
        changes,
        digest=b"\x01" * 32,
        based_on=tuple((key, 1) for key in based_on),
        note="why",
        epoch=epoch,
        results=("private/ada/list/0000000000",),
    )


def put(key: str, value: bytes = b"\x01") -> Change:
    """A key that was set."""
    return Change(ChangeKind.PUT, key, value)


def marker(revision: int, from_revision: int, own: int | None = None) -> LogEntry:
    """The entry that begins an epoch."""
    epoch = Epoch(2, "second", "engine", from_revision, revision if own is None else own)
    return entry(revision, epoch=epoch)


def nobody(_: str) -> bool:
    """Nothing may be read."""
    return False


def anybody(_: str) -> bool:
    """Everything may be read."""
    return True


# --- a log ----------------------------------------------------------------------------------------


@given(st.integers(0, 50), st.integers(0, 20))
def test_consecutive_revisions_are_a_log(after: int, count: int) -> None:
    entries = [entry(after + i) for i in range(1, count + 1)]
    assert check_sequence(after, entries) == after + count


@pytest.mark.parametrize("revisions", [[2], [1, 3], [1, 1], [1, 2, 1], [0]])
def test_gaps_and_repetitions_are_no_log(revisions: list[int]) -> None:
    with pytest.raises(Corrupt):
        check_sequence(0, [entry(revision) for revision in revisions])


def begin(revision: int, from_revision: int, cause: str) -> LogEntry:
    """The entry of revision `revision` that begins an epoch because of `cause`."""
    return entry(revision, epoch=Epoch(2, "second", cause, from_revision, revision))


def test_a_restore_skips_nothing() -> None:
    assert check_sequence(4, [entry(5), begin(6, 2, RESTORE), entry(7)]) == 7
    with pytest.raises(Corrupt):
        check_sequence(4, [entry(5), begin(7, 2, RESTORE)])


def test_only_the_first_entry_of_all_may_be_a_branch_above_others() -> None:
    assert check_sequence(0, [begin(40, 39, BRANCH), entry(41)]) == 41
    with pytest.raises(Corrupt):
        check_sequence(0, [entry(1), begin(40, 39, BRANCH)])


SEED = Seed(Epoch(1, "branch", BRANCH, 9, 10), 0)


def kept(key: str, mod_revision: int = 9, create_revision: int = 1) -> Entry:
    """An entry of another board."""
    return Entry(key, b"\x01", mod_revision, create_revision, "ada", 0, None)


def test_pages_of_a_seed_ascend() -> None:
    assert check_seed(SEED, "", [kept("public/a"), kept("public/b")]) == "public/b"
    assert check_seed(SEED, "public/b", []) == "public/b"
    for page in ([kept("public/b")], [kept("public/c"), kept("public/c")]):
        with pytest.raises(InvalidRequest):
            check_seed(SEED, "public/b", page)


@pytest.mark.parametrize(("modified", "created"), [(10, 1), (3, 4), (3, 0)])
def test_entries_of_a_seed_are_older_than_it(modified: int, created: int) -> None:
    with pytest.raises(InvalidRequest):
        check_seed(SEED, "", [kept("public/a", modified, created)])


def test_only_the_beginning_of_an_epoch_may_skip_revisions() -> None:
    assert check_sequence(4, [entry(5), marker(900, 5), entry(901)]) == 901
    with pytest.raises(Corrupt):
        check_sequence(4, [entry(5), marker(900, 5), entry(902)])


@pytest.mark.parametrize(
    "bad", [marker(4, 3), marker(3, 2), marker(9, 9), marker(9, 12), marker(9, 4, own=8)]
)
def test_a_marker_that_contradicts_itself_is_no_log(bad: LogEntry) -> None:
    with pytest.raises(Corrupt):
        check_sequence(4, [bad])


# --- what is visible ------------------------------------------------------------------------------


def test_only_what_matches_and_may_be_read_is_shown() -> None:
    whole = entry(5, put("public/a"), put("public/b"), put("private/ada/a"))
    shown = visible(whole, parse_patterns(["*/a", "private/**"]), lambda k: k.startswith("public"))
    assert shown is not None
    assert [change.key for change in shown.changes] == ["public/a"]


@pytest.mark.parametrize("patterns", [["public/x"], ["**"]])
def test_an_entry_with_nothing_to_show_is_not_shown(patterns: list[str]) -> None:
    hidden = entry(5, put("private/ada/a"))
    assert visible(hidden, parse_patterns(patterns), nobody) is None


def test_grounds_that_may_not_be_read_are_left_out() -> None:
    whole = entry(5, put("public/a"), based_on=("private/ada/a", "public/b"))
    shown = visible(whole, ALL, lambda key: key.startswith("public"))
    assert shown is not None
    assert shown.based_on == (("public/b", 1),)


def test_the_identity_and_the_results_of_a_commit_are_never_shown() -> None:
    """Results name keys and counts, so with the incarnation the digest would confirm guesses."""
    shown = visible(entry(5, put("public/a")), ALL, anybody)
    assert shown is not None
    assert (shown.id, shown.results) == (CommitId("ada", 0, "", 0), ())
    assert (shown.author, shown.note, shown.time_ms, shown.revision) == ("ada", "why", 1_005, 5)


def test_the_beginning_of_an_epoch_is_shown_to_everybody() -> None:
    shown = visible(marker(900, 5), parse_patterns(["public/x"]), nobody)
    assert shown is not None
    assert shown.epoch is not None


# --- coalescing -----------------------------------------------------------------------------------


def test_coalescing_keeps_the_last_change_of_each_key() -> None:
    lease = Lease("public/a", "ada", 2, 9)
    many = [
        entry(1, put("public/a", b"\x01"), put("public/b", b"\x01")),
        entry(2, Change(ChangeKind.GRANT, "public/a", lease=lease)),
        entry(3, put("public/a", b"\x02"), Change(ChangeKind.DELETE, "public/b")),
    ]
    one = coalesce(many)
    assert (one.revision, one.time_ms, one.epoch) == (3, 1_003, None)
    assert [(c.kind, c.key, c.value) for c in one.changes] == [
        (ChangeKind.GRANT, "public/a", None),
        (ChangeKind.PUT, "public/a", b"\x02"),
        (ChangeKind.DELETE, "public/b", None),
    ]


def test_coalescing_keeps_the_newest_epoch() -> None:
    one = coalesce([marker(900, 5), entry(901, put("public/a"))])
    assert one.epoch is not None
    assert one.revision == 901


CHANGES = st.builds(
    lambda key, value: Change(ChangeKind.DELETE, key) if value is None else put(key, value),
    st.sampled_from(["public/a", "public/b", "public/c"]),
    st.sampled_from([b"\x01", b"\x02", None]),
)


@given(st.lists(st.lists(CHANGES, max_size=4), min_size=1, max_size=6))
def test_coalescing_leads_to_the_same_state(commits: list[list[Change]]) -> None:
    """Applying the one entry gives what applying all of them gives."""
    entries = [entry(i, *changes) for i, changes in enumerate(commits, 1)]
    step_by_step: dict[str, bytes | None] = {}
    for each in entries:
        step_by_step.update((c.key, c.value) for c in each.changes)
    assert {c.key: c.value for c in coalesce(entries).changes} == step_by_step


# --- sizes ----------------------------------------------------------------------------------------


def test_the_cost_grows_with_every_change_and_byte() -> None:
    small, large = entry(1, put("public/a")), entry(1, put("public/a", b"x" * 1_000))
    assert cost_of(entry(1)) < cost_of(small) < cost_of(entry(1, put("public/a"), put("public/b")))
    assert cost_of(large) - cost_of(small) == 999


@pytest.mark.parametrize(("entries", "surplus"), [(99, 0), (100, 0), (110, 0), (111, 11)])
def test_a_log_is_trimmed_when_it_is_a_tenth_too_long(entries: int, surplus: int) -> None:
    head = Head(entries, Epoch(1, "first"), oldest=1, log_entries=entries)
    assert excess(head, 100) == surplus


@given(st.lists(st.sampled_from([0, 1, 200, 510, 511, 512, 600]), max_size=5))
def test_a_page_is_looked_through_in_portions(sizes: list[int]) -> None:
    """All of it, in order; each has about five hundred changes, or is one entry."""
    page = [
        entry(revision, *(put(f"public/{n}") for n in range(size)))
        for revision, size in enumerate(sizes, 1)
    ]
    found = [list(portion) for portion in portions(page)]
    assert [each for portion in found for each in portion] == page
    for portion in found:
        assert portion
        assert sum(1 + len(each.changes) for each in portion[:-1]) < 512
