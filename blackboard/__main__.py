"""`python -m blackboard` is the command `blackboard`."""

import gc

from blackboard._lazy import whole

OBJECTS_OF_MODULES = 100_000
"""After how many new objects a command looks for garbage. Loading its modules makes half a million
objects that stay: with Python's 700 it would go through them again and again, which took 15 to 25 %
of the processor time in which `blackboard mcp` starts."""


def main() -> None:
    """Run the command line, in a process of its own. A service has thresholds of its own."""
    gc.set_threshold(OBJECTS_OF_MODULES)
    whole("blackboard.cli.main", "the command line").app(prog_name="blackboard")


if __name__ == "__main__":
    main()
