"""What a client asks of a service as a whole: who am I, and, for admins, tokens and keys."""

from collections.abc import AsyncIterator

from blackboard.client.audit_record import AuditRecord
from blackboard.client.link import Link
from blackboard.core.access import Principal
from blackboard.types import LIST_ENTRIES_MAX, Key, Milliseconds


class Administration:
    """The part of `Client` that is about no single board."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def whoami(self) -> Principal:
        """Whom the service takes you for, and what that one may do."""
        return await self.link.whoami()

    async def audit(self) -> AsyncIterator[AuditRecord]:
        """Every record of the audit, the oldest first.

        Errors: AccessDenied unless you are an admin of everything.
        """
        after: Key | None = None
        while True:
            page = await self.link.audit(after=after, limit=LIST_ENTRIES_MAX)
            for _, record in page:
                yield record
            if len(page) < LIST_ENTRIES_MAX:  # not "until nothing comes": this look is recorded too
                return
            after = page[-1][0]

    async def erase(self, agent: str, *, board: str | None = None) -> int:
        """Destroy the data keys of an agent, on one board or on all: nobody reads it any more.

        Log, archive, exports and copies of them stay as they are, and open no more. Returns how
        many keys there were. Errors: AccessDenied; InvalidRequest when nothing is sealed.
        """
        return await self.link.erase(agent, board)

    async def rewrap(self) -> int:
        """After a new master key was put in front: wrap every data key with it."""
        return await self.link.rewrap()

    async def revoke(
        self,
        *tokens: str,
        principal: str | None = None,
        until_ms: Milliseconds | None = None,
    ) -> int:
        """End tokens by their ids, and all that `principal` was issued until now, at once.

        Returns how many are revoked. Errors: AccessDenied unless they are your own, or you are an
        admin of everything.
        """
        return await self.link.revoke(tokens=tokens, principal=principal, until_ms=until_ms)
