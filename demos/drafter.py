"""An agent that writes page after page: `python -m blackboard.demos.drafter NAME`.

Its draft is private, what it announces is public, and both change in one commit. It keeps nothing
else, so the process that starts under its name goes on with its draft. If the board was restored
under it, it is refused, says so, and ends with 3.
"""

import asyncio
import sys

import blackboard
from blackboard import Board, Conflict, StaleEpoch

REFUSED = 3
PAGE_S = 0.2
"""How long a page takes: people are to see it happen."""


async def write_page(board: Board, name: str) -> str:
    """One step: read, think, commit the draft and its announcement. Returns the page."""
    async with board.step(name, note="another page") as step:
        draft = await step.get(f"private/{name}/draft", [])
        valuation = await step.get("public/valuation")
        orders = await step.list(f"inbox/{name}/**")
        page = f"page {len(draft) + 1} of the {name}, on {valuation['usd_bn']} bn"
        step.put(f"private/{name}/draft", [*draft, page])
        step.append("public/minutes", page)
        for order in orders.entries:
            step.put("public/valuation", {**valuation, **order.value})
            step.delete("public/plan")
            step.delete(order.key)
    return page


async def work(board: Board, name: str) -> int:
    """Write until somebody ends this process, or the board is restored; returns the exit code."""
    while True:
        try:
            print(await write_page(board, name), flush=True)
        except Conflict:
            continue  # it read what another one was just changing
        except StaleEpoch as error:
            print(f"refused: {error.cause} to revision {error.from_revision}", flush=True)
            return REFUSED
        await asyncio.sleep(PAGE_S)


async def main(name: str) -> int:
    """Work on the board that the environment names (BLACKBOARD_URL, _TOKEN, _BOARD)."""
    async with blackboard.connect() as client:
        return await work(client.board(), name)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
