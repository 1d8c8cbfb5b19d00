"""Makes one Cluster of the servers that are named, unless they are one already.

A server is named by its address, HOST:PORT; or HOST:PORT@PORT, as CLUSTER NODES writes it, if the
port for the others is not 10000 above.
"""

import re
import sys
import time
from typing import Final

from redis import Redis

SLOTS: Final = 16384
POLL_S: Final = 0.1
PATIENCE_S: Final = 60


def main(addresses: list[str]) -> None:
    """Share the slots out, introduce the servers to each other, and wait until they agree."""
    places = [re.split("[:@]", address) for address in addresses]
    nodes = [Redis(place[0], int(place[1]), decode_responses=True) for place in places]
    for number, node in enumerate(nodes):
        if info(node)["cluster_slots_assigned"] == "0":
            first = SLOTS * number // len(nodes)
            last = SLOTS * (number + 1) // len(nodes) - 1
            node.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
            node.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
    for place in places[1:]:
        nodes[0].execute_command("CLUSTER MEET", *place)
    until = time.monotonic() + PATIENCE_S
    while not all(is_whole(node, len(nodes)) for node in nodes):
        if time.monotonic() > until:
            sys.exit(f"no Cluster after {PATIENCE_S} s: {[info(node) for node in nodes]}")
        time.sleep(POLL_S)


def is_whole(node: Redis, size: int) -> bool:
    """Whether the server knows an owner of each slot, and all the others."""
    found = info(node)
    known = (found["cluster_known_nodes"], found["cluster_slots_ok"])
    return found["cluster_state"] == "ok" and known == (str(size), str(SLOTS))


def info(node: Redis) -> dict[str, str]:
    """What the server knows of its Cluster."""
    found: dict[str, str] = node.execute_command("CLUSTER INFO")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
