"""The service: open boards, the commit queue, the feed, the archiver. Only the server runs it."""
