"""A result of each method, and what a watch is sent: with every member, and with as few as may be.

`tests/unit/wire/test_golden.py` writes them, and compares the bytes with recorded ones.
"""

from typing import Any, Final

from blackboard.client.audit_record import AuditRecord
from blackboard.client.views import Cause, Receipt
from blackboard.core.access import AccessGrant, Principal, Right
from blackboard.core.checkpoints import (
    BarrierReport,
    Checkpoint,
    CheckpointInfo,
    Difference,
    Differences,
    ExportPage,
    LostBoard,
    Pruned,
    Recovered,
    Redaction,
    Restored,
    Verified,
    Version,
)
from blackboard.core.commit import (
    Change,
    ChangeKind,
    CommitId,
    Entry,
    Epoch,
    Head,
    Lease,
    LogEntry,
    LogPage,
    Proof,
    Reading,
    Waiter,
)
from blackboard.core.freeze import Freeze
from blackboard.wire.codec import encode_value

EPOCH: Final = Epoch(2, "e", "restore", 3, 9)
FULL: Final = Entry("public/a", encode_value({"x": [1, b"\x00", None]}), 3, 1, "ada@me", 10, 20)
BARE: Final = Entry("public/b", encode_value("\u00e9\n"), 4, 4, "bob", 11)
SECRET: Final = Entry("private/bob/c", b"\xc1\x01 ciphertext", 5, 5, "bob", 12)
QUEUE: Final = (Waiter("bob~1", 500, 900, "bob"), Waiter("eve~1", 600, 950))
LOCK: Final = Lease("public/l", "ada~1", 7, 800, QUEUE, 400, "ada")
HEAD: Final = Head(9, EPOCH, 2, 1_000, 8)
CHANGES: Final = (
    Change(ChangeKind.PUT, "public/a", encode_value({"value": b"\x01", "n": 1.5}), 20, 4),
    Change(ChangeKind.PUT, "public/n", encode_value(None)),
    Change(ChangeKind.DELETE, "public/b"),
    Change(ChangeKind.GRANT, "public/l", lease=LOCK),
    Change(ChangeKind.RELEASE, "public/m", lease=Lease("public/m", "ada~2", 8, 0)),
)
AUTHOR: Final = CommitId("ada.me", 3, "i", 7)
FULL_LOG: Final = LogEntry(
    *(9, 1_000, AUTHOR, CHANGES, b"\xab" * 32, (("public/z", 3), ("public/y", 0)), "why \u00e9"),
    *(EPOCH, (None, 3), b"salt", "ada"),
)
BARE_LOG: Final = LogEntry(10, 1_001, CommitId("bob", 0, "i", 8), (), b"\x00" * 32)
LOG: Final = (FULL_LOG, BARE_LOG)
PROOF: Final = Proof((b"\x01", b""), (b"\x02" * 32, None), (b"\x03",))
REPORT: Final = BarrierReport(3, ("ada",), (), ("eve",))
CHECKPOINT: Final = Checkpoint("b", "plan", 7, 10, "named", "ada", "why", REPORT, pinned=True)
BARE_CHECKPOINT: Final = Checkpoint("b", "auto", 8, 11, "automatic")
GRANTS: Final = (AccessGrant("public/**", frozenset({Right.WRITE, Right.READ})),)

RESULTS: Final[dict[str, list[Any]]] = {
    "unwatch": [None],
    "progress": [None],
    "commit": [
        Receipt(7, 9, (None, 3, "public/l/0000000001", ("public/a", 1), ()), "disk"),
        Receipt(7, 9, (), "memory", duplicate=True),
    ],
    "head": [HEAD],
    "read": [Reading(9, "e", (FULL, BARE)), Reading(0, "e")],
    "list": [Reading(9, "e", (BARE,), "public/b")],
    "leases": [Reading(9, "e", (), "public/m", (LOCK, Lease("public/m", "h", 8, 9)))],
    "log": [
        LogPage(HEAD, LOG, 12, (PROOF, None)),
        LogPage(HEAD, (), 3),
    ],
    "why": [
        [
            Cause("public/a", 3, 0, "ada.me", 10, "n", (("public/b", 2),), "", "ada"),
            Cause("public/b", 2, 1, missing="compacted"),
        ]
    ],
    "boards": [["a", "b"], []],
    "checkpoint": [CHECKPOINT, BARE_CHECKPOINT],
    "checkpoints": [[CHECKPOINT, BARE_CHECKPOINT]],
    "manifest": [
        CheckpointInfo(
            *(CHECKPOINT, EPOCH, "aa", "bb", {"public": "cc"}, {"ada": 3}),
            *({"ada": {"value": b"\x01", "model": None}}, "k", {"ada": 2}),
        ),
        CheckpointInfo(BARE_CHECKPOINT, EPOCH, "aa", "", {}, {}),
    ],
    "pin": [None],
    "prune": [Pruned(("a",), ("b", "c"), 3), Pruned((), ())],
    "restore": [Restored(9, 10, EPOCH, 3, 4, 5, "before")],
    "recover": [Recovered(False, 5, 3, 0, "")],
    "redact": [Redaction(True, "done", ("b",), 2, 1, ("backups",)), Redaction(False, "archive")],
    "freeze": [Freeze("ada", "why", 10, 3)],
    "thaw": [Freeze("ada", "", 10, 3), None],
    "remove": [None],
    "branch": [HEAD],
    "differences": [
        Differences(
            *(3, 9, (Difference("public/a", None, FULL), Difference("public/b", BARE, None))),
            "public/b",
        ),
        Differences(3, 9, (Difference("public/a", FULL, BARE),)),
    ],
    "history": [
        [
            Version("public/a", 3, 10, "ada@me", FULL),
            Version("public/a", 2, 9, "ada@me", None),
            Version("public/a", 1, 8, "bob", BARE),
        ]
    ],
    "verify": [Verified(9, ("bad",), True, ("bob",)), Verified(9)],
    "export": [
        ExportPage(7, (FULL, SECRET), "public/b", b"{}", b"\x01\x02", (("public/l", 4),)),
        ExportPage(7, (), None, b"{}", b"\x01"),
        ExportPage(7, (BARE,)),
    ],
    "import_begin": [None],
    "import_page": [None],
    "import_end": [HEAD],
    "lost_boards": [[LostBoard("b", 3, 9, "main"), LostBoard("c", 0, 1)]],
    "audit": [
        [
            ("system/audit/1", AuditRecord(10, "ada", "t", "commit", "b", "public/a", "ok")),
            (
                "system/audit/2",
                AuditRecord(
                    *(11, "ada", "t", "read", "b", "x", "access_denied", "w", 3, "ff", 2),
                    *("k", "ee", "sealed"),
                ),
            ),
        ]
    ],
    "erase": [3],
    "rewrap": [0],
    "revoke": [2],
    "issue": ["head.claims.signature"],
}
"""Results by method, as the service has them; those of the connection itself stand below."""
PRINCIPALS: Final = (
    Principal("ada", (*GRANTS, AccessGrant("**", frozenset())), frozenset({"b", "a"}), 99),
    Principal("root", ()),
)
