"""The runtime of agents: steps, journal, approvals, teams. Built on the Board interface only."""
