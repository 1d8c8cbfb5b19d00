"""Signatures, tokens, envelopes and digests: proof that data is what was written."""
