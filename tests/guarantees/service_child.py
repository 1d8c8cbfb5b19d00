"""The service as a process: `python -m tests.guarantees.service_child <settings as JSON>`.

Prints a line when the port answers. With a second argument, `verbose`, everything that it logs goes
to standard error.
"""

import json
import logging
import sys

from blackboard.server.http.serve import Serving, run
from blackboard.server.settings import load


def _say(serving: Serving) -> None:
    sys.stdout.write(serving.url + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[2:]:
        logging.basicConfig(level=logging.INFO)
        logging.getLogger("blackboard").setLevel(logging.DEBUG)
    run(load(json.loads(sys.argv[1])), ready=_say)
