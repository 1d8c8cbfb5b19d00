"""The service as a process: `python -m tests.guarantees.service_child <settings as JSON>`.

Prints a line when the port answers.
"""

import json
import sys

from blackboard.net.config import load
from blackboard.net.server import Serving, run


def _say(serving: Serving) -> None:
    sys.stdout.write(serving.url + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run(load(json.loads(sys.argv[1])), ready=_say)
