"""Manifests, which describe a checkpoint: what one says, and whether its signer said it.

`signing.py` makes them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from blackboard._lazy import need
from blackboard.core.commit import Epoch
from blackboard.errors import Corrupt, NewerFormat
from blackboard.units import Milliseconds, Revision

FORMAT: Final = 1


def read_manifest(manifest: bytes) -> dict[str, Any]:
    """Parse a manifest. Errors: Corrupt when it is not one; NewerFormat."""
    try:
        said = json.loads(manifest)
    except (ValueError, RecursionError) as error:  # the latter: it nests too deeply
        raise Corrupt(what="manifest", reason=str(error)) from error
    if not isinstance(said, dict):
        raise Corrupt(what="manifest", reason="no object")
    found = said.get("format")
    if type(found) is int and found > FORMAT:
        raise NewerFormat("the manifest of a checkpoint", found, FORMAT)
    return said


def is_signed(manifest: bytes, signature: bytes, public: bytes) -> bool:
    """Whether the owner of `public` signed exactly these bytes."""
    need(
        "cryptography", "checking a signature needs cryptography", "agent-blackboard-client[export]"
    )
    # Not imported above: it is an extra of the client, which only reads manifests for exports.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, manifest)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a checkpoint's manifest; hashes as bytes, `key` is the signer's public key."""

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
    memory: Mapping[str, Revision]

    @staticmethod
    def read(manifest: bytes) -> "Manifest":
        """Parse a manifest. Errors: Corrupt when it is not one; NewerFormat."""
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
                memory={name: int(at) for name, at in said.get("memory", {}).items()},
            )
        except (
            AttributeError,
            IndexError,
            KeyError,
            OverflowError,  # Infinity, which JSON does not have and Python reads
            TypeError,
            ValueError,
        ) as error:
            raise Corrupt(what="manifest", reason=repr(error)) from error

    @staticmethod
    def read_signed(manifest: bytes, signature: bytes) -> "Manifest":
        """As `read`, if the key that it names signed it. Errors: Corrupt."""
        found = Manifest.read(manifest)
        if not is_signed(manifest, signature, found.key):
            raise Corrupt(what="manifest", reason="its signature does not fit")
        return found
