"""What the Board promises to people, whatever is behind it: subclass `BoardSuite`, and provide
`services` in the module.

    @pytest.fixture(scope="module")
    async def services(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Services]: ...

The rules stand in `rules_board_*.py` beside this file, a group each; each test has its own board.
"""

from collections.abc import AsyncIterator

import pytest

from blackboard.client.board import Board
from blackboard.client.link import Transport
from tests.conformance.rules_board_account import AccountRules
from tests.conformance.rules_board_branch import BranchRules
from tests.conformance.rules_board_checkpoint import BarrierRules, CheckpointRules
from tests.conformance.rules_board_claim import ClaimRules
from tests.conformance.rules_board_document import DocumentRules
from tests.conformance.rules_board_document_peer import DocumentPastRules, DocumentPeerRules
from tests.conformance.rules_board_file import FileRules
from tests.conformance.rules_board_freeze import FreezeRules
from tests.conformance.rules_board_lock import FenceRules, LockRules, WaitFreeRules
from tests.conformance.rules_board_pages import PageRules
from tests.conformance.rules_board_past import PastRules
from tests.conformance.rules_board_presence import PresenceRules
from tests.conformance.rules_board_private import PrivateRules
from tests.conformance.rules_board_read import BoardReadRules
from tests.conformance.rules_board_redact import RedactRules
from tests.conformance.rules_board_restore import RestoreRules
from tests.conformance.rules_board_step import StepRules
from tests.conformance.rules_board_watch import WatchRules
from tests.conformance.rules_board_workspace import WorkspaceRules
from tests.conformance.rules_board_write import BoardWriteRules
from tests.conformance.rules_runtime import AgentLifeRules, AgentStepRules
from tests.conformance.rules_runtime_approvals import ApprovalRules
from tests.conformance.rules_runtime_freeze import AgentFreezeRules
from tests.conformance.rules_runtime_journal import JournalRules
from tests.conformance.rules_runtime_restore import AgentRestoreRules
from tests.conformance.shared import Services
from tests.conformance.team import Team


class BoardAgents:
    """Who the rules are tried with. The module provides `services`."""

    @pytest.fixture
    async def team(self, services: Services, request: pytest.FixtureRequest) -> AsyncIterator[Team]:
        """A board of the test's own, on a service that others may share."""
        async with services.team(request.node) as team:
            yield team

    @pytest.fixture
    async def ada(self, team: Team) -> Board:
        """The board as agent ada."""
        return await team.board("ada")

    @pytest.fixture
    async def bob(self, team: Team) -> Board:
        """The board as agent bob."""
        return await team.board("bob")

    @pytest.fixture
    async def boss(self, team: Team) -> Board:
        """The board as a person sees it who may approve what agents ask."""
        return await team.operator()

    @pytest.fixture
    async def link(self, team: Team, ada: Board) -> Transport:
        """Ada's way to the service."""
        return (await team.client_of(ada)).link


class EngineRules(
    BoardAgents,
    BoardWriteRules,
    BoardReadRules,
    StepRules,
    WatchRules,
    PrivateRules,
    LockRules,
    FenceRules,
    WaitFreeRules,
    PresenceRules,
    ClaimRules,
    CheckpointRules,
    BarrierRules,
    PastRules,
    RestoreRules,
    RedactRules,
    BranchRules,
    FreezeRules,
    AccountRules,
):
    """The rules that an engine has a part in: those of commits, reads, leases and the history."""


class ServiceRules(BoardAgents, PageRules, DocumentRules, FileRules, WorkspaceRules):
    """The rules of what the service makes of those: pages of what may be read, documents; and of
    what every client makes of them: files, workspaces."""


class ClientRules(
    BoardAgents,
    DocumentPeerRules,
    DocumentPastRules,
    AgentStepRules,
    AgentLifeRules,
    JournalRules,
    ApprovalRules,
    AgentRestoreRules,
    AgentFreezeRules,
):
    """The rules of what clients make of those: agents, approvals, documents among peers."""


class BoardSuite(EngineRules, ServiceRules, ClientRules):
    """Every rule. The module provides `services`."""
