"""A sealed manifest (integrity/signing.py), read: what it says, as nouns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blackboard.core.commit import Epoch
from blackboard.errors import Corrupt
from blackboard.integrity.signing import is_signed, read_manifest
from blackboard.types import Milliseconds, Revision


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint's manifest says; hashes as bytes, `key` is the signer's public key."""

    board: str
    name: str
    revision: Revision
    time_ms: Milliseconds
    epoch: Epoch
    chain: bytes
    previous: bytes
    digests: Mapping[str, bytes]
    steps: Mapping[str, Revision]
    declared: Mapping[str, Any]
    key: bytes

    @staticmethod
    def read(manifest: bytes) -> "Manifest":
        """Errors: Corrupt when it is none."""
        said = read_manifest(manifest)
        try:
            number, name, cause, from_revision, revision = said["epoch"]
            return Manifest(
                board=str(said["board"]),
                name=str(said["checkpoint"]),
                revision=int(said["revision"]),
                time_ms=int(said["time_ms"]),
                epoch=Epoch(int(number), str(name), str(cause), int(from_revision), int(revision)),
                chain=bytes.fromhex(said["chain"]),
                previous=bytes.fromhex(said["previous"]),
                digests={name: bytes.fromhex(found) for name, found in said["digests"].items()},
                steps={name: int(step[0]) for name, step in said["agents"].items()},
                declared=dict(said["declared"]),
                key=bytes.fromhex(said["key"]),
            )
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise Corrupt(what="manifest", reason=repr(error)) from error

    @staticmethod
    def read_signed(manifest: bytes, signature: bytes) -> "Manifest":
        """As `read`, if the key that it names signed it. Errors: Corrupt."""
        found = Manifest.read(manifest)
        if not is_signed(manifest, signature, found.key):
            raise Corrupt(what="manifest", reason="its signature does not fit")
        return found
