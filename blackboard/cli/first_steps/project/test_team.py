"""What the agents promise: each by itself, and both on a real board."""

import asyncio
import tempfile
import unittest

import blackboard
from blackboard import try_step
from blackboard.errors import AccessDenied
from blackboard.types import Inputs

import team


class TestScout(unittest.TestCase):
    """One step as a function of its inputs, without a board."""

    def test_it_publishes_the_prices_that_were_asked_for(self) -> None:
        """Only those."""
        letter = ("planner", ["hall", "music"])
        trial = asyncio.run(try_step(team.Scout("scout"), None, Inputs(inbox=[letter])))
        self.assertEqual(trial.written, {"public/prices": {"hall": 900, "music": 300}})

    def test_it_rests_without_a_letter(self) -> None:
        """Nothing is written."""
        trial = asyncio.run(try_step(team.Scout("scout"), None, Inputs()))
        self.assertEqual(trial.written, {})


class TestTeam(unittest.TestCase):
    """Both, on a board in a directory of its own."""

    def test_they_make_a_plan(self) -> None:
        """And neither reads what the other remembers."""
        asyncio.run(self.plan())

    async def plan(self) -> None:
        """The test itself, which waits for the board."""
        with tempfile.TemporaryDirectory() as folder:
            async with blackboard.open(folder) as client:
                board = client.board(team.BOARD)
                await team.work(board)
                plan = await board.get("public/plan")
                self.assertEqual(
                    plan, {"items": ["catering", "hall", "music"], "eur": 2600}
                )
                with self.assertRaises(AccessDenied):
                    await board.as_agent("planner").get("private/scout/~state")


if __name__ == "__main__":
    unittest.main()
