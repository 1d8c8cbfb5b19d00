"""Semantic memory: what an agent or a team remembers, as entries, and a search by meaning in it."""
