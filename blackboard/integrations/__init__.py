"""Agent frameworks on a board: each module here speaks the interface of one framework.

    from blackboard.integrations.langgraph import BlackboardSaver, BlackboardStore

Importing this package loads none of them. A module needs its framework, which is an extra
(`pip install 'agent-blackboard[langgraph]'`); docs/integrations.md says which versions are tested,
and what maps to what. They use nothing but the public interface of Blackboard.
"""
