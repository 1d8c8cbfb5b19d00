"""Values as they are stored, of which digests are made: an encrypted one as its ciphertext."""


class Opened(bytes):
    """The plain bytes of a value, together with its ciphertext.

    Two are equal if their ciphertext is equal. A restore puts the same ciphertext back, so that
    digests do not change.
    """

    sealed: bytes

    @staticmethod
    def of(plain: bytes, sealed: bytes) -> "Opened":
        """`plain`, which was decrypted from `sealed`."""
        found = Opened(plain)
        found.sealed = sealed
        return found

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Opened):
            return self.sealed == other.sealed
        return bytes.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return bytes.__hash__(self)


def sealed_form(value: bytes) -> bytes:
    """The stored form of a value: its ciphertext, if it was decrypted."""
    return value.sealed if isinstance(value, Opened) else value
