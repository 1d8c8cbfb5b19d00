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
    Mutant(
        "deferred rows overwrite later writes",
        "blackboard/engines/sqlite/deferred_rows.py",
        "            self.drop(connection, rows)\n            if self._quiet:",
        "            if self._quiet:",
        f"{UNIT}/engines/sqlite/test_deferred_rows.py",
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
        "            if trial.maybe_executed:\n                return commit_arguments([",
        "            if False:\n                return commit_arguments([",
        "tests/faults/test_redis_faults.py -k pushed_out",
    ),
)
