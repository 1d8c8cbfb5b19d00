"""Faults in the service: who is let do what, what is recorded, what is swept, documents."""

from tests.seeded.mutant import BOARD, UNIT, Mutant

MUTANTS = (
    # --- tokens and doors -------------------------------------------------------------------------
    Mutant(
        "a revocation is forgotten at the next one",
        "blackboard/server/security/revocations.py",
        "if until <= now_ms and key not in names]",
        "if key not in names]",
        f"{UNIT}/server/security/test_revocations.py -k not_over",
    ),
    Mutant(
        "of a chain only the last link can be revoked",
        "blackboard/server/security/revocations.py",
        "for one in credential.ids)",
        "for one in credential.ids[-1:])",
        f"{UNIT}/server/security/test_chain.py -k revoked_link",
    ),
    Mutant(
        "a token outlives the revocation of its issuer's",
        "blackboard/server/security/revocations.py",
        "return self._is_revoked(issuer.name, issuer.credential)",
        "return False",
        f"{UNIT}/server/security/test_issue.py -k token_of_its_issuer",
    ),
    Mutant(
        "what was refused is carried out all the same",
        "blackboard/server/commit_queue.py",
        "if n not in refused] if refused else batch",
        "if n not in refused] if not refused else batch",
        f"{UNIT}/server/security/test_revocations.py -k not_carried_out",
    ),
    Mutant(
        "a document is open to a revoked token",
        "blackboard/server/documents/rooms.py",
        "check=check,",
        "check=lambda: None,",
        f"{UNIT}/server/security/test_revocations.py -k document",
    ),
    Mutant(
        "of two Host headers the first counts",
        "blackboard/server/http/handshake.py",
        'b", ".join(found).decode("latin-1")',
        'found[0].decode("latin-1")',
        f"{UNIT}/server/http/test_handshake.py -k twice",
    ),
    Mutant(
        "metrics are served under any host name",
        "blackboard/server/http/app.py",
        'Route("/metrics", routes.behind_doors(routes.metrics))',
        'Route("/metrics", routes.metrics)',
        f"{UNIT}/server/http/test_app.py -k not_ours",
    ),
    Mutant(
        "a body may have any size",
        "blackboard/server/http/app.py",
        "                if size > FRAME_BYTES_MAX:\n",
        "                if False:\n",
        f"{UNIT}/server/http/test_app.py -k before_its_end",
    ),
    Mutant(
        "one principal opens all boards",
        "blackboard/server/boards.py",
        "        if mine > share:\n",
        "        if False:\n",
        f"{UNIT}/server/test_boards.py",
    ),
    Mutant(
        "boards that nobody uses stay open",
        "blackboard/server/boards.py",
        "                if board.is_unused and self._open",
        "                if False and self._open",
        f"{UNIT}/server/test_unused_boards.py",
    ),
    Mutant(
        "a board is closed under its watchers",
        "blackboard/server/boards.py",
        "return not (self.feed.watchers or self.queue.is_working)",
        "return True",
        f"{UNIT}/server/test_unused_boards.py",
    ),
    Mutant(
        "what expires on a closed board is forgotten",
        "blackboard/server/boards.py",
        "            self._due_ms[name] = due_ms\n",
        "            pass\n",
        f"{UNIT}/server/test_unused_boards.py",
    ),
    Mutant(
        "the engine closes a board under a call",
        "blackboard/engines/sqlite/board.py",
        "        self._suspended += 1\n",
        "        self._suspended += 0\n",
        f"{UNIT}/engines/sqlite/test_unused.py",
    ),
    Mutant(
        "any token may stand in a URL",
        "blackboard/server/http/documents.py",
        "        if token is None and not is_for_document(principal, board, key):\n",
        "        if False:\n",
        f"{UNIT}/client/remote/test_tokens_in_use.py -k in_a_url",
    ),
    # --- what is private --------------------------------------------------------------------------
    Mutant(
        "all commits have one salt",
        "blackboard/server/commit_queue.py",
        "        return _SALTS.popleft()\n",
        "        return bytes(SALT_BYTES)\n",
        f"{BOARD} -k digest_tells_nothing",
    ),
    Mutant(
        "why tells the keys of others",
        "blackboard/server/checkpoints/reader.py",
        "for ground in grounds if readable(ground[0]))",
        "for ground in grounds)",
        f"{BOARD} -k why_walks_back",
    ),
    Mutant(
        "what others keep makes a page shorter",
        "blackboard/server/pages.py",
        "            if not self._readable(entry.key):\n"
        "                continue\n"
        "            # Only behind a readable key: that others follow must not end a page.\n"
        "            if self.is_full:\n"
        "                return False\n"
        "            self._seen += 1\n",
        "            if self.is_full:\n"
        "                return False\n"
        "            self._seen += 1\n"
        "            if not self._readable(entry.key):\n"
        "                continue\n",
        f"{BOARD} -k what_others_keep",
    ),
    Mutant(
        "a page ends at a key of somebody else",
        "blackboard/server/pages.py",
        "            if not self._readable(entry.key):\n"
        "                continue\n"
        "            # Only behind a readable key: that others follow must not end a page.\n"
        "            if self.is_full:\n"
        "                return False\n"
        "            self._seen += 1\n"
        "            self.last = entry.key\n",
        "            self.last = entry.key\n"
        "            if not self._readable(entry.key):\n"
        "                continue\n"
        "            # Only behind a readable key: that others follow must not end a page.\n"
        "            if self.is_full:\n"
        "                return False\n"
        "            self._seen += 1\n",
        f"{BOARD} -k shows_all_that_may_be_read",
    ),
    # --- watches ----------------------------------------------------------------------------------
    Mutant(
        "a gap in the log is passed on",
        "blackboard/server/feed.py",
        "                    history.check_sequence(self._newest, page.entries)\n",
        "",
        f"{UNIT}/server/test_feed.py -k with_a_gap",
    ),
    Mutant(
        "a gap is passed on to who catches up",
        "blackboard/server/feed.py",
        "        history.check_sequence(after, found)\n",
        "",
        f"{UNIT}/server/test_feed.py -k with_a_gap",
    ),
    # --- the audit --------------------------------------------------------------------------------
    Mutant(
        "what was noted last is not in the audit",
        "blackboard/server/security/audit.py",
        "            while self._waiting:\n"
        "                await self._write_some()\n"
        "        except",
        "            pass\n        except",
        f"{UNIT}/server/security/test_audit.py -k noted_last",
    ),
    Mutant(
        "the audit has twice what the end interrupts",
        "blackboard/server/security/audit.py",
        "        if self._sent is None:\n",
        "        if True:\n",
        f"{UNIT}/server/security/test_audit.py -k written_once",
    ),
    Mutant(
        "the audit has twice what had no answer",
        "blackboard/server/security/audit.py",
        "        if isinstance(outcome, OutcomeUnknown) and not outcome.final:\n"
        "            raise outcome\n",
        "",
        f"{UNIT}/server/security/test_audit.py -k without_an_answer",
    ),
    # --- queues and sweeps ------------------------------------------------------------------------
    Mutant(
        "a queue that was given up counts its bytes",
        "blackboard/server/commit_queue.py",
        "self.load.backlog_bytes -= sum([waiting[0].size for waiting in self._waiting])",
        "pass",
        f"{UNIT}/server/test_commit_queue.py -k a_bug",
    ),
    Mutant(
        "what was written again meanwhile expires",
        "blackboard/server/sweeper.py",
        "(Delete(entry.key),), (unchanged,))",
        "(Delete(entry.key),), ())",
        f"{UNIT}/server/test_sweeping.py -k in_time",
    ),
    Mutant(
        "who died is still shown as present",
        "blackboard/server/sweeper.py",
        "(Expire(lease.key, lease.holder, lease.fence), *gone))",
        "(Expire(lease.key, lease.holder, lease.fence),))",
        f"{UNIT}/server/test_sweeper.py -k presence",
    ),
    # --- documents --------------------------------------------------------------------------------
    Mutant(
        "an edit that waits outlives its token",
        "blackboard/server/documents/session.py",
        "        while True:\n"
        "            self._check_token()\n"
        "            try:\n"
        "                return await self._room",
        "        while True:\n            try:\n                return await self._room",
        f"{UNIT}/server/security/test_revocations.py -k edit_that_waits",
    ),
    Mutant(
        "an edit of before a restore gets in",
        "blackboard/server/documents/session.py",
        "        if self._is_stale:\n            self._room.forget()\n",
        "        if False:\n            self._room.forget()\n",
        f"{BOARD} -k edit_of_the_abandoned_future",
    ),
    Mutant(
        "an edit of after a restore counts as one of before",
        "blackboard/server/documents/session.py",
        "        if not self._is_stale:\n            updates +=",
        "        if True:\n            updates +=",
        f"{BOARD} -k seen_a_restore",
    ),
    Mutant(
        "a peer with edits of an abandoned future gets the restored content",
        "blackboard/server/documents/session.py",
        "if self._is_stale and lacks:",
        "if False:",
        f"{BOARD} -k refusal_that_gets_lost",
    ),
    Mutant(
        "an edit that waited is committed after a restore",
        "blackboard/server/documents/room.py",
        "        writer.saw(self.revision)\n",
        "",
        f"{UNIT}/server/documents/test_rooms.py -k waits_while",
    ),
    Mutant(
        "a removed document comes back without a mark",
        "blackboard/client/documents/inverse.py",
        "return (*gone, *back, *_marked(key, kept, authors))",
        "return (*gone, *back)",
        f"{BOARD} -k removed_document",
    ),
    Mutant(
        "a token counts as checked against a record that was read after it",
        "blackboard/server/security/revocations.py",
        "batch.refuse(self._revocations.recheck([permits[number] for number in batch.left]))",
        "pass",
        f"{UNIT}/server/security/test_permits.py -k another_one_has_read",
    ),
    Mutant(
        "a permit is later than the check of its token",
        "blackboard/server/requests.py",
        "outcome = await opened.submit(prepared, permit)",
        "outcome = await opened.submit(prepared, self._permit())",
        f"{UNIT}/server/security/test_revocations.py -k opened_first",
    ),
    Mutant(
        "an edit does not need its author's token",
        "blackboard/server/requests.py",
        "self._host.revocations, self._permitted or self.principal",
        "self._host.revocations, self.principal",
        f"{UNIT}/server/security/test_revocations.py -k edit_in_the_queue",
    ),
    Mutant(
        "a revocation does not wait for a restore",
        "blackboard/server/boards.py",
        "await self.queue.apart(carry_out())",
        "await carry_out()",
        f"{UNIT}/server/security/test_revocations.py -k past_the_queue",
    ),
    Mutant(
        "an edit is delivered twice",
        "blackboard/server/documents/room.py",
        "            edit.is_forwarded = True\n",
        "",
        f"{UNIT}/server/documents/test_edits_in_flight.py",
    ),
    Mutant(
        "who left comes back with old news",
        "blackboard/server/documents/awareness.py",
        "            if presence.state is None or presence.clock <= gone_clock:\n",
        "            if presence.state is None:\n",
        f"{UNIT}/server/documents/test_awareness.py",
    ),
)
