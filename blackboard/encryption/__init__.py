"""Encryption at rest: data keys, and an engine and an archive that encrypt their values."""
