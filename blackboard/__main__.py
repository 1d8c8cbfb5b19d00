"""`python -m blackboard` is the command `blackboard`."""

import gc
import sys

from blackboard._lazy import whole

OBJECTS_OF_MODULES = 100_000
"""After how many new objects a command looks for garbage. Loading its modules makes half a million
objects that stay: with Python's 700 it would go through them again and again, which took 15 to 25 %
of the processor time in which `blackboard mcp` starts."""

INTERRUPTED = 130
"""The exit code after Ctrl-C, as `blackboard.cli.errors.Exit` has it. Importing that takes time, in
which Ctrl-C may come."""


def main() -> None:
    """Run the command line, in a process of its own. A service has thresholds of its own."""
    gc.set_threshold(OBJECTS_OF_MODULES)
    try:
        whole("blackboard.cli.main", "the command line").app(prog_name="blackboard")
    except KeyboardInterrupt:
        # Modules are loaded for a third of a second, before a command reports what ended it.
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
