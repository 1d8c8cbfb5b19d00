"""Signatures, tokens, envelopes and digests: proof that bytes are what was written."""
