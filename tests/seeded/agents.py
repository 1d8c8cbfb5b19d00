"""Faults in the runtime of agents: approvals, teams, memory, migrations."""

from tests.seeded.mutant import BOARD, UNIT, Mutant

MUTANTS = (
    # --- approvals --------------------------------------------------------------------------------
    Mutant(
        "an answer counts for any request",
        "blackboard/runtime/approvals.py",
        " or answer.request != asked.mod_revision:",
        ":",
        f"{UNIT}/runtime/test_approvals.py",
    ),
    Mutant(
        "an approval does not condition its facts",
        "blackboard/runtime/approvals.py",
        "        keys = (self.request_key, self.decision_key, *self.facts)\n",
        "        keys = (self.request_key, self.decision_key)\n",
        f"{UNIT}/runtime/test_approvals.py",
    ),
    Mutant(
        "a large fact may change behind an approval",
        "blackboard/runtime/approvals.py",
        "was[key].digest != fact.digest",
        "was[key].value != fact.value",
        f"{UNIT}/runtime/test_approvals.py",
    ),
    Mutant(
        "a request in the name of another is shown",
        "blackboard/runtime/approvals.py",
        "        if request is not None and entry.author == name[0]:\n",
        "        if request is not None:\n",
        f"{BOARD} -k in_the_name_of_another",
    ),
    Mutant(
        "who asked answers under a narrowed name",
        "blackboard/runtime/approvals.py",
        "given.owner == asked.owner or",
        "given.author == asked.author or",
        f"{BOARD} -k asked_on_his_account",
    ),
    # --- teams ------------------------------------------------------------------------------------
    Mutant(
        "what has come already does not end a rest",
        "blackboard/runtime/stall.py",
        "if revised.epoch is not None or any(map(rest.is_ended_by, changes)):",
        "if revised.epoch is not None:",
        f"{UNIT}/runtime/test_stall.py -k come_already",
    ),
    Mutant(
        "crashes that are years apart make a loop",
        "blackboard/runtime/supervisor.py",
        "        self._in_a_row = 0\n        self.rested()\n",
        "        self.rested()\n",
        f"{UNIT}/runtime/test_supervisor.py -k last_commit",
    ),
    Mutant(
        "a crash after a restore is not told",
        "blackboard/runtime/supervisor.py",
        "            await self._board.refresh()  # the board may have been restored since\n",
        "",
        f"{UNIT}/runtime/test_supervisor.py -k after_a_restore",
    ),
    Mutant(
        "a wait for many patterns looks at some of them",
        "blackboard/runtime/run.py",
        "patterns if len(patterns) <= PATTERNS_MAX else _wider(patterns)",
        "patterns[:PATTERNS_MAX]",
        f"{UNIT}/runtime/test_run.py -k missed_wakes",
    ),
    # --- states and memory ------------------------------------------------------------------------
    Mutant(
        "a failed migration changes what is stored",
        "blackboard/runtime/state.py",
        "            plain = deepcopy(plain)  # a migration may change what it is given\n",
        "            pass\n",
        f"{UNIT}/runtime/test_state.py",
    ),
    Mutant(
        "a state that cannot be read back is written",
        "blackboard/runtime/state.py",
        "        self._load(agent, text)\n        # Sets",
        "        # Sets",
        f"{UNIT}/runtime/test_state.py",
    ),
    Mutant(
        "a migration writes over a step",
        "blackboard/runtime/migrations.py",
        "            conditions=[KeyAt(entry.key, entry.mod_revision)],\n",
        "",
        f"{UNIT}/runtime/test_migrations.py",
    ),
    Mutant(
        "a window misses what is archived meanwhile",
        "blackboard/runtime/transcripts.py",
        "turns = deque(await self._turns(board, first), maxlen=turns_max)\n"
        '        entry = await board.entry(self._key("summary"))  # after',
        'entry = await board.entry(self._key("summary"))\n'
        "        turns = deque(await self._turns(board, first), maxlen=turns_max)  # after",
        f"{UNIT}/runtime/test_transcripts.py -k missing_in_no_window",
    ),
    Mutant(
        "a search finds what a restore took back",
        "blackboard/runtime/transcripts.py",
        "if any(there.get(key) != revision for key, revision in self._pages.items()):\n",
        "if any(key not in there for key in self._pages):\n",
        f"{UNIT}/runtime/test_transcripts.py -k taken_back",
    ),
    # --- files ------------------------------------------------------------------------------------
    Mutant(
        "a directory stays behind the board",
        "blackboard/client/workspace/step_files.py",
        "        if not is_same or not at.path.exists():\n",
        "        if not at.path.exists():\n",
        f"{UNIT}/runtime/test_agent_files.py -k follow",
    ),
    Mutant(
        "an agent that is done is not looked after",
        "blackboard/runtime/runner.py",
        "        async with self._tree() as tree:\n",
        "        if now.stored.status is Status.DONE:\n"
        "            return self._stepped(now, attempt)\n"
        "        async with self._tree() as tree:\n",
        f"{UNIT}/runtime/test_agent_files.py -k done",
    ),
    Mutant(
        "what others changed during a step is lost",
        "blackboard/client/workspace/step_files.py",
        '        await at.check_unchanged(seen, self._salt, "step")\n',
        "",
        f"{UNIT}/runtime/test_agent_files.py -k changes_of_others",
    ),
    Mutant(
        "a step does not rest on its files",
        "blackboard/runtime/files.py",
        "                self._step.saw(self._tree.head)\n",
        "                pass\n",
        f"{UNIT}/runtime/test_agent_files.py -k rests_on",
    ),
    Mutant(
        "files of a stopped command are committed",
        "blackboard/runtime/files.py",
        "            self._broken = stopped\n",
        "",
        f"{UNIT}/runtime/test_agent_files.py -k without_end",
    ),
)
