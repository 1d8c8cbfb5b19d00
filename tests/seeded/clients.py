"""Faults in what clients promise: writers, watches, leases, claims, steps."""

from tests.seeded.mutant import BOARD, UNIT, Mutant

MUTANTS = (
    # --- writers and watches ----------------------------------------------------------------------
    Mutant(
        "messages behind a broken rule are taken",
        "blackboard/client/remote/client_socket.py",
        " and self.protocol.state is OPEN",
        "",
        "tests/unit/client/remote/test_hostile_service.py -k breaks_the_rules",
    ),
    Mutant(
        "the body of a refusal is taken for frames",
        "blackboard/client/remote/client_socket.py",
        "self._owed = _ALL  # it is refused",
        "self._owed = 0  # it is refused",
        "tests/unit/client/remote/test_hostile_service.py -k refusal_of_the_greeting",
    ),
    Mutant(
        "a writer goes on though what it saw is lost",
        "blackboard/client/writer.py",
        'if error.cause != "engine" or not is_next or self.seen > error.from_revision:',
        'if error.cause != "engine" or not is_next:',
        f"{UNIT}/client/test_writer.py -k lost_something_seen",
    ),
    Mutant(
        "a writer adopts an epoch behind another one",
        "blackboard/client/writer.py",
        "        is_next = error.number == number + 1\n",
        "        is_next = error.number > number\n",
        f"{UNIT}/client/test_writer.py -k behind_another",
    ),
    Mutant(
        "a refusal of a retry is believed at once",
        "blackboard/client/writer.py",
        "                if uncertain is not None:\n                    await",
        "                if False:\n                    await",
        f"{UNIT}/client/test_writer.py -k refused or refusal",
    ),
    Mutant(
        "a step is not conditioned on what it read alone",
        "blackboard/client/step.py",
        "if k not in self._covered]",
        "if not self._listed]",
        f"{UNIT}/client/test_step.py",
    ),
    Mutant(
        "a listing covers what was read before it",
        "blackboard/client/step.py",
        "for e in meant if self._agrees(e)}",
        "for e in meant}",
        f"{UNIT}/client/test_step.py",
    ),
    Mutant(
        "a remembered token goes to another address",
        "blackboard/client/contexts.py",
        "context if context and url and context.is_at(url) else None",
        "context if context and url else None",
        f"{UNIT}/cli/test_target.py",
    ),
    Mutant(
        "what was sent counts as not sent",
        "blackboard/client/remote/channel.py",
        "                request.written = True\n",
        "                pass\n",
        f"{UNIT}/client/remote/test_link.py -k lost_commit",
    ),
    Mutant(
        "a watch that begins again begins where it began",
        "blackboard/client/remote/stream.py",
        "        self._edge = changed.position\n",
        "",
        f"{UNIT}/client/remote/test_link.py -k service_that_restarts",
    ),
    # --- leases and claims ------------------------------------------------------------------------
    Mutant(
        "a lease counts from the answer of its renewal",
        "blackboard/client/leases/lock.py",
        "                self._deadline_s = sent_s + self._ttl_s\n",
        "                self._deadline_s = loop.time() + self._ttl_s\n",
        f"{UNIT}/client/leases/test_keeper.py",
    ),
    Mutant(
        "a lease counts from the answer to its grant",
        "blackboard/client/leases/lock.py",
        "        self._keeper.start(self._sent_s)\n",
        "        self._keeper.start(asyncio.get_running_loop().time())\n",
        f"{UNIT}/client/leases/test_lock.py -k long_under_way",
    ),
    Mutant(
        "who leaves is still shown as present",
        "blackboard/client/leases/presence.py",
        "return [*leaving, Delete(presence_key(self.agent)), Delete(barrier_key(self.agent))]",
        "return [*leaving, Delete(barrier_key(self.agent))]",
        f"{BOARD} -k seen_and_then_no_more",
    ),
    Mutant(
        "who leaves holds up a checkpoint",
        "blackboard/client/leases/presence.py",
        "return [*leaving, Delete(presence_key(self.agent)), Delete(barrier_key(self.agent))]",
        "return [*leaving, Delete(presence_key(self.agent))]",
        f"{BOARD} -k who_leaves_is_not_waited_for",
    ),
    Mutant(
        "a claim that is cancelled while taken stays",
        "blackboard/client/leases/claim.py",
        "                await self._quietly(self._undo(self._task), None)\n            raise",
        "                pass\n            raise",
        f"{UNIT}/client/leases/test_interrupted.py -k cancel-claim",
    ),
    Mutant(
        "a task whose end is refused is not returned",
        "blackboard/client/leases/claim.py",
        "        except BaseException as error:\n"
        "            await self._quietly(self._failed(task, error), error)\n"
        "            raise\n",
        "",
        f"{BOARD} -k end_that_is_refused",
    ),
    Mutant(
        "one attempt too many",
        "blackboard/client/leases/claim.py",
        "        if task.attempt >= self._terms.tries_max:\n",
        "        if task.attempt > self._terms.tries_max:\n",
        f"{BOARD} -k fails_too_often",
    ),
    Mutant(
        "votes of a lease that was not granted are kept",
        "blackboard/server/redlock_votes.py",
        "            if error is not None:\n                await self._give_back()\n",
        "            if error is not None:\n",
        "tests/faults/test_redlock_faults.py -k votes_for_none",
    ),
    Mutant(
        "votes that came too late count",
        "blackboard/engines/redis/redlock.py",
        "        if loop.time() >= deadline:\n",
        "        if False:\n",
        f"{UNIT}/engines/redis/test_redlock.py -k too_late",
    ),
)
