"""Locks, claims and presence: three uses of a lease."""
