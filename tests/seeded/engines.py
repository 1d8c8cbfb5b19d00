"""Faults in files, in the embedded engine and in the one over Redis."""

from tests.seeded.mutant import UNIT, Mutant

MUTANTS = (
    # --- files ------------------------------------------------------------------------------------
    Mutant(
        "a draft gets its name before it is on the disk",
        "blackboard/engines/disk.py",
        "            file.flush()\n            sync(file.fileno())\n    except",
        "            file.flush()\n    except",
        f"{UNIT}/engines/test_disk.py",
    ),
    Mutant(
        "the name of a replaced file is not synced",
        "blackboard/engines/disk.py",
        "        draft.unlink(missing_ok=True)\n        raise\n    sync_path(path.parent)\n",
        "        draft.unlink(missing_ok=True)\n        raise\n",
        f"{UNIT}/engines/test_disk.py",
    ),
    Mutant(
        "the journal of a removed board meets the new one",
        "blackboard/engines/sqlite/new.py",
        "            _remove_beside(self._path)  # of a board of that name that was removed\n",
        "",
        f"{UNIT}/engines/sqlite/test_new.py",
    ),
    # --- the follower -----------------------------------------------------------------------------
    Mutant(
        "the mark moves before its last rows are written",
        "blackboard/engines/sqlite/follower.py",
        "        place = (*self.mark, state.revision)\n",
        "        place = (state.revision, state.time_ms, state.oldest, state.revision)\n",
        f"{UNIT}/engines/sqlite/test_follower.py -k some_rows_at_a_time",
    ),
    Mutant(
        "the last row of the log is not applied again",
        "blackboard/engines/sqlite/file.py",
        'digest, checksum FROM log WHERE revision > ?"\n',
        'digest, checksum FROM log WHERE revision > ?"\n'
        '    " AND revision < (SELECT max(revision) FROM log)"\n',
        f"{UNIT}/engines/sqlite/test_follower.py -k is_a_row_of_the_log",
    ),
    Mutant(
        "compaction removes rows of the log above the mark",
        "blackboard/engines/sqlite/follower.py",
        "        self.mark = (state.revision, state.time_ms, state.oldest)\n",
        "        if log_below is None:\n"
        "            self.mark = (state.revision, state.time_ms, state.oldest)\n",
        "tests/faults/test_follower_crash.py -k killed",
    ),
    Mutant(
        "answers are not applied again",
        "blackboard/engines/sqlite/file.py",
        "            evolve(state, entry)\n            if entry.epoch",
        "            answers = dict(state.answers)\n"
        "            evolve(state, entry)\n"
        "            state.answers = answers\n"
        "            if entry.epoch",
        f"{UNIT}/engines/sqlite/test_follower.py -k every_kind",
    ),
    Mutant(
        "what was created above the mark is there before it is created",
        "blackboard/engines/sqlite/file.py",
        "        leave_out(state, backlog.note_ahead(state))\n",
        "",
        f"{UNIT}/engines/sqlite/test_follower.py -k some_rows_at_a_time",
    ),
    Mutant(
        "a removal that is written ahead of the mark leaves no tombstone",
        "blackboard/engines/sqlite/follower.py",
        "for held in self.before[:2]]",
        "for held in self.before[:1]]",
        f"{UNIT}/engines/sqlite/test_follower.py -k with_its_trace",
    ),
    Mutant(
        "the journal is copied before the head says where the log ends",
        "blackboard/engines/sqlite/file.py",
        "        if self.is_journal_long and writes.place is not None:\n",
        "        if self.is_journal_long:\n",
        f"{UNIT}/engines/sqlite/test_suspect.py -k journal_is_copied",
    ),
    # --- tablets ----------------------------------------------------------------------------------
    Mutant(
        "a key that is not loaded is absent",
        "blackboard/engines/sqlite/cache.py",
        "        if found is None:\n            if self.unloaded:\n",
        "        if found is None:\n            if False:\n",
        f"{UNIT}/engines/sqlite/test_tablets.py -k never_said",
    ),
    Mutant(
        "entries that the file does not hold yet are evicted",
        "blackboard/engines/sqlite/cache.py",
        "            if not part.is_loaded or self._hand in busy:\n",
        "            if not part.is_loaded:\n",
        f"{UNIT}/engines/sqlite/test_cache.py -k not_hold_yet",
    ),
    Mutant(
        "a tablet that lost a row is loaded",
        "blackboard/engines/sqlite/rows.py",
        "    if len(found) != tablet.keys or (weight - tablet.weight) % WEIGHT_MODULUS:\n",
        "    if False:\n",
        f"{UNIT}/engines/sqlite/test_tablets.py -k fails_alone",
    ),
    Mutant(
        "entries that are being written are evicted",
        "blackboard/engines/sqlite/board.py",
        "        return chain(self._backlog.before[0], written)\n",
        "        return iter(self._backlog.before[0])\n",
        f"{UNIT}/engines/sqlite/test_cache.py -k being_written",
    ),
    # --- Redis ------------------------------------------------------------------------------------
    Mutant(
        "too few replicas count as enough",
        "blackboard/engines/redis/driver.py",
        "        return int(await connection.read_response()) >= replicas\n",
        "        return int(await connection.read_response()) >= 0\n",
        "tests/faults/test_redis_replicas.py -k had_says_so",
    ),
    Mutant(
        "a failed WAIT counts as replicated",
        "blackboard/engines/redis/driver.py",
        "        return False  # the driver has closed the connection\n",
        "        return True\n",
        "tests/faults/test_redis_replicas.py -k error_behind_the_answer",
    ),
    Mutant(
        "a retry of the driver is a first attempt",
        "blackboard/engines/redis/store.py",
        "            if budget.maybe_executed:\n                return commit_arguments([",
        "            if False:\n                return commit_arguments([",
        "tests/faults/test_redis_faults.py -k pushed_out",
    ),
)
