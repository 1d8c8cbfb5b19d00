"""The service: open boards, the commit queue, the feed, the archiver. Only the server runs it."""

from blackboard._lazy import need_posix

need_posix("Blackboard's service, and blackboard.open with it,")
