"""Keys, namespaces, patterns: what they are, and that nothing else passes."""

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from blackboard.core import path
from blackboard.core.path import (
    check_key,
    check_name,
    check_prefix,
    is_meant,
    item_key,
    namespace_of,
    parse_pattern,
    parse_patterns,
    range_below,
    range_watched,
)
from blackboard.errors import InvalidRequest, LimitExceeded
from blackboard.limits import KEY_BYTES_MAX, PATTERNS_MAX, SEGMENT_BYTES_MAX

segments = st.text("ab.~-_09", min_size=1, max_size=3).filter(lambda s: s not in (".", ".."))
paths = st.lists(segments, min_size=1, max_size=4).map("/".join)
near_paths = st.text("ab./~*0\n é", max_size=8)
patterns = st.lists(segments | st.just("*"), min_size=1, max_size=4).map("/".join) | st.builds(
    lambda head: f"{head}/**", st.lists(segments | st.just("*"), min_size=1).map("/".join)
)


@pytest.mark.parametrize("key", ["public/a", "public/a/b.c/~d-e_f", "private/ada/x", "inbox/bob/1"])
def test_a_key_lies_in_a_namespace(key: str) -> None:
    """A well-formed key is returned as it is."""
    assert check_key(key) == key


@pytest.mark.parametrize(
    "key",
    [
        "",
        "public",
        "public/",
        "/public/a",
        "public//a",
        "public/a/",
        "public/a\n",
        "public/a b",
        "public/ä",
        "public/*",
        "public/.",
        "public/../private/ada/x",
        "private/ada",
        "private/ada/",
        "private//x",
        "inbox/bob",
        "Public/a",
        "other/a/b",
        "publica/b",
    ],
)
def test_what_is_no_key_is_refused(key: str) -> None:
    """There is one spelling of each key, and nothing outside a namespace."""
    with pytest.raises(InvalidRequest) as refused:
        check_key(key)
    assert refused.value.field == "key"


@pytest.mark.parametrize("prefix", ["public", "public/a", "private/ada", "inbox/bob/x"])
def test_a_prefix_names_a_namespace_or_something_within(prefix: str) -> None:
    """A prefix may be a whole namespace."""
    assert check_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["", "private", "inbox", "public/", "public/..", "a"])
def test_what_is_no_prefix_is_refused(prefix: str) -> None:
    """No prefix reaches over several agents' namespaces."""
    with pytest.raises(InvalidRequest) as refused:
        check_prefix(prefix)
    assert refused.value.field == "prefix"


def test_sizes_have_edges() -> None:
    """SEGMENT_BYTES_MAX per segment, KEY_BYTES_MAX in all."""
    longest = "s" * SEGMENT_BYTES_MAX
    assert check_key(f"public/{longest}")
    assert check_name(longest)
    for check, text in ((check_key, f"public/{longest}s"), (check_name, f"{longest}s")):
        with pytest.raises(InvalidRequest):
            check(text)
    key = ("public/" + "a/" * KEY_BYTES_MAX)[: KEY_BYTES_MAX - 1] + "a"
    assert check_key(key) == key
    with pytest.raises(LimitExceeded) as refused:
        check_key(f"{key}a")
    assert refused.value.fields() == {
        "limit": "KEY_BYTES_MAX",
        "value": KEY_BYTES_MAX + 1,
        "maximum": KEY_BYTES_MAX,
        "where": None,
        "account": None,
    }


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "*", "ä", "a\n"])
def test_what_is_no_name_is_refused(name: str) -> None:
    """The field that held it is named."""
    with pytest.raises(InvalidRequest) as refused:
        check_name(name, "agent")
    assert refused.value.field == "agent"


@pytest.mark.parametrize(
    ("key", "namespace"),
    [
        ("public/a/b", "public"),
        ("private/ada/x/y", "private/ada"),
        ("private/ada", "private/ada"),
        ("inbox/bob/x", "inbox/bob"),
    ],
)
def test_each_key_has_one_namespace(key: str, namespace: str) -> None:
    """Of a key and of a prefix."""
    assert namespace_of(key) == namespace


@given(paths, paths | near_paths)
def test_the_range_below_a_prefix_is_what_starts_with_it(prefix: str, key: str) -> None:
    """range_below is exactly "starts with the prefix and a slash"."""
    for candidate in (key, f"{prefix}/{key}", f"{prefix}{key}"):
        first, last = range_below(prefix)
        assert (first <= candidate < last) == candidate.startswith(f"{prefix}/")


@given(st.sampled_from(["public", "private/ada", "inbox/~a"]), paths)
def test_a_condition_on_a_namespace_leaves_out_exactly_its_books(prefix: str, path: str) -> None:
    """A book is a branch of the namespace whose name begins with a tilde."""
    first, last = range_watched(prefix)
    assert (first <= f"{prefix}/{path}" < last) == (not path.startswith("~"))


@given(st.sampled_from(["public/a", "public/~a", "private/ada/~"]), paths)
def test_a_condition_on_any_other_prefix_is_about_all_below_it(prefix: str, path: str) -> None:
    """Below the first segment a tilde means nothing."""
    assert range_watched(prefix) == range_below(prefix)
    first, last = range_watched(prefix)
    assert first <= f"{prefix}/{path}" < last


@pytest.mark.parametrize(
    ("pattern", "key", "meant"),
    [
        ("public/**", "public/plan", True),
        ("public/**", "public/plan/~draft", True),
        ("public/**", "public/~agents/ada", False),
        ("public/*/*", "public/~agents/ada", False),
        ("**", "private/ada/~state", False),
        ("**", "inbox/ada/messages/0000000000", True),
        ("public/~agents/**", "public/~agents/ada", True),
        ("private/*/~state", "private/ada/~state", True),
        ("*/~agents/*", "public/~agents/ada", True),
        ("private/ada/~state", "private/ada/~state", True),
    ],
)
def test_a_pattern_is_about_a_book_only_if_it_names_it(pattern: str, key: str, meant: bool) -> None:
    """Who reads everything means what agents tell each other."""
    assert parse_pattern(pattern).matches(key)
    assert is_meant(pattern, key) is meant


@given(st.integers(0, 10**10 - 2))
def test_items_sort_in_the_order_of_their_indexes(index: int) -> None:
    """As strings."""
    assert item_key("public/l", index) < item_key("public/l", index + 1)
    assert check_key(item_key("public/l", index))


def naive(pattern: list[str], key: list[str]) -> bool:
    """The reference matcher, segment by segment."""
    if not pattern:
        return not key
    if pattern == ["**"]:
        return bool(key)
    return bool(key) and pattern[0] in ("*", key[0]) and naive(pattern[1:], key[1:])


@given(patterns | st.just("**"), paths)
def test_a_pattern_matches_what_the_reference_matches(text: str, key: str) -> None:
    """Any pattern and any path."""
    assert parse_pattern(text).matches(key) == naive(text.split("/"), key.split("/"))


@given(patterns | st.just("**"), paths | near_paths)
def test_a_compiled_pattern_matches_the_same(text: str, key: str) -> None:
    """It is compiled when it was asked often, and never before."""
    parse_pattern.cache_clear()
    pattern = parse_pattern(text)
    first = pattern.matches(key)
    assert "_regex" not in vars(pattern)
    assert {pattern.matches(key) for _ in range(300)} == {first}
    assert "_regex" in vars(pattern)


@given(st.data(), paths)
def test_a_pattern_made_from_a_key_matches_it(data: st.DataObject, key: str) -> None:
    """Wild cards in place of segments: the previous test hardly ever sees a match."""
    found = [data.draw(st.sampled_from((segment, "*"))) for segment in key.split("/")]
    if data.draw(st.booleans()):
        found = [*found[: data.draw(st.integers(0, len(found) - 1))], "**"]
    pattern = parse_pattern("/".join(found))
    assert pattern.matches(key)
    assert naive(found, key.split("/"))
    assert pattern.literal == (found == key.split("/"))
    assert (key + "/").startswith(f"{pattern.prefix}/" if pattern.prefix else "")


@pytest.mark.parametrize("text", ["", "a/", "/a", "a//b", "**/a", "a*", "a/**/b", "***", "../a"])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    """A star stands alone, two of them at the end."""
    with pytest.raises(InvalidRequest) as refused:
        parse_pattern(text)
    assert refused.value.field == "pattern"


def test_dots_in_a_pattern_are_dots() -> None:
    """No character of a segment means anything to the matcher."""
    assert not parse_pattern("public/a.b").matches("public/axb")
    assert parse_pattern("public/a.b").matches("public/a.b")


def test_a_list_of_patterns_has_edges() -> None:
    """One at least, PATTERNS_MAX at most."""
    assert len(parse_patterns(["a"] * PATTERNS_MAX)) == PATTERNS_MAX
    with pytest.raises(InvalidRequest):
        parse_patterns([])
    with pytest.raises(LimitExceeded) as refused:
        parse_patterns(["a"] * (PATTERNS_MAX + 1))
    assert (refused.value.limit, refused.value.value) == ("PATTERNS_MAX", PATTERNS_MAX + 1)


@given(near_paths)
def test_no_text_gets_through_the_grammar_by_accident(text: str) -> None:
    """What check_key accepts is built of segments, below a namespace."""
    for candidate in (text, f"public/{text}", f"private/{text}"):
        try:
            check_key(candidate)
        except InvalidRequest:
            continue
        first, *rest = candidate.split("/")
        assert first in ("public", "private", "inbox")
        assert len(rest) >= (1 if first == "public" else 2)
        assert all(path.check_name(segment) for segment in rest)


@pytest.mark.parametrize(
    ("check", "path", "hint"),
    [
        (check_key, "plan", "write public/..., private/AGENT/..."),
        (check_key, "private/ada", "everything below it is private/ada/\\*\\*"),
        (check_key, "public", "everything below it is public/\\*\\*"),
        (check_key, "public/../ada", "key: no segment is . or ..$"),
        (check_prefix, "public/", "without a trailing slash"),
        (parse_pattern, "public/**/x", "a final \\*\\* is the rest"),
    ],
)
def test_a_refusal_says_what_to_write(check: Callable[[str], object], path: str, hint: str) -> None:
    """Where no page is at hand."""
    with pytest.raises(InvalidRequest, match=hint):
        check(path)
