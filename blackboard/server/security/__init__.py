"""The audit and the revocation of tokens."""
