"""Input that no client of ours sends, for so long: `python -m tests.hostile 60`.

The tests below, again and again with another seed each time: garbage and bombs for every decoder,
CRDT updates that were changed on the way, floods, readers that never read, forged rights.
"""

import os
import random
import re
import subprocess
import sys
import time

from tests.proof import Layer
from tests.source_tree import ROOT

TESTS = (
    "tests/unit/test_fuzz.py",
    "tests/unit/wire/test_session_garbage.py",
    "tests/unit/wire/test_frames.py",
    "tests/unit/wire/test_codec.py",
    "tests/unit/core/documents/test_update.py",
    "tests/unit/integrity/test_tokens.py",
    "tests/unit/server/http/test_handshake.py",
    "tests/unit/server/test_validation.py",
    "tests/unit/core/test_access.py",
    "tests/unit/integrity/test_envelope.py",
    "tests/acceptance/test_bad_input.py",
)
PASSED = re.compile(r"(\d+) passed")


def main(seconds: str) -> int:
    """Run until the time is over; 1 when a test failed."""
    first = int(os.environ.get("BLACKBOARD_TEST_SEED") or random.SystemRandom().randrange(2**31))
    deadline_s, number = time.monotonic() + float(seconds), first
    with Layer("hostile") as layer:
        while number == first or time.monotonic() < deadline_s:
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
            ended = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "BLACKBOARD_TEST_SEED": str(number)},
                capture_output=True,
                text=True,
            )
            found = PASSED.search(ended.stdout)
            layer.operations += int(found.group(1)) if found else 0
            layer.seeds.append(number)
            if ended.returncode:
                layer.violations += 1
                sys.stdout.write(ended.stdout)
            number += 1
    return min(layer.violations, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
