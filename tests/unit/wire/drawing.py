"""Values, keys, commits and log entries for property tests of the wire."""

from hypothesis import strategies as st

from blackboard.core.commit import (
    ABSENT,
    PRESENT,
    Append,
    Change,
    ChangeKind,
    Commit,
    CommitId,
    Delete,
    DeletePrefix,
    Entry,
    Epoch,
    Grant,
    HeldFence,
    Increment,
    KeyAt,
    Lease,
    LogEntry,
    PrefixUnchanged,
    Put,
    Release,
    Renew,
)
from blackboard.limits import INTEGER_MAX, LANES_MAX, LEASE_TTL_MS_MIN, REVISION_MAX, TTL_MS_MAX
from blackboard.wire.codec import BYTES_KEY, encode_value

names = st.from_regex(r"[A-Za-z0-9._~-]{1,12}", fullmatch=True).filter(
    lambda name: name not in (".", "..")
)
keys = st.builds("public/{}/{}".format, names, names)
prefixes = st.builds("private/{}".format, names)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.binary(max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts.filter(lambda name: name != BYTES_KEY), inner, max_size=4)
    ),
    max_leaves=12,
)
encoded = values.map(encode_value)
revisions = st.integers(1, REVISION_MAX)
ttls = st.integers(1, TTL_MS_MAX)
lease_ttls = st.integers(LEASE_TTL_MS_MIN, TTL_MS_MAX)
operations = (
    st.builds(Put, keys, encoded, st.none() | ttls)
    | st.builds(Append, prefixes, encoded, st.none() | ttls)
    | st.builds(Delete, keys)
    | st.builds(DeletePrefix, prefixes)
    | st.builds(Increment, keys, st.integers(-INTEGER_MAX, INTEGER_MAX))
    | st.builds(Grant, keys, names, lease_ttls)
    | st.builds(Renew, keys, names, revisions, lease_ttls)
    | st.builds(Release, keys, names, revisions)
)
conditions = st.builds(KeyAt, keys, revisions | st.sampled_from([ABSENT, PRESENT])) | st.builds(
    PrefixUnchanged, prefixes, revisions
)
grounds = st.lists(st.tuples(keys, revisions), max_size=3).map(tuple)
commits = st.builds(
    Commit,
    id=st.builds(CommitId, names, st.integers(0, LANES_MAX - 1), names, st.integers(0, 2**53 - 1)),
    epoch=names,
    ops=st.lists(operations, min_size=1, max_size=4).map(tuple),
    conditions=st.lists(conditions, max_size=3).map(tuple),
    fences=st.lists(st.builds(HeldFence, keys, names, revisions), max_size=2).map(tuple),
    based_on=grounds,
    note=texts,
    retry_since=st.none() | revisions,
    known=st.none() | revisions,
)
epochs = st.builds(Epoch, revisions, names, texts, revisions, revisions)
leases = st.builds(Lease, keys, names, revisions, revisions)
changes = (
    st.builds(
        Change,
        st.just(ChangeKind.PUT),
        keys,
        encoded,
        st.none() | revisions,
        st.none() | st.integers(0, 9),
    )
    | st.builds(Change, st.just(ChangeKind.DELETE), keys)
    | st.builds(
        Change,
        st.sampled_from([ChangeKind.GRANT, ChangeKind.RENEW, ChangeKind.RELEASE]),
        keys,
        lease=leases,
    )
)
log_entries = st.builds(
    LogEntry,
    revisions,
    revisions,
    st.builds(lambda author: CommitId(author, 0, "", 0), names),
    st.lists(changes, max_size=4).map(tuple),
    st.binary(min_size=32, max_size=32),
    grounds,
    texts,
    st.none() | epochs,
)
entries = st.builds(
    Entry, keys, encoded, revisions, revisions, names, revisions, st.none() | revisions
)
