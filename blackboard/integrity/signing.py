"""Manifests: the description of a checkpoint in canonical JSON, signed with Ed25519 (RFC 8032).

Invariants
- The manifest of a checkpoint is deterministic, byte for byte: keys are sorted, there is no white
  space, hashes are in lower-case hexadecimal.
- A manifest contains the hash of the one before it on its board, so removing one, or replacing it
  by an older one, is detected.

The key is a file of 32 bytes in hexadecimal. It is needed to make manifests; checking them needs
only the public key, which each manifest contains.
"""

import base64
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from blackboard.core.checkpoints import Cut, Step, StoredCheckpoint
from blackboard.core.commit import Epoch
from blackboard.engines import disk
from blackboard.errors import Corrupt, InvalidRequest, NewerFormat
from blackboard.integrity.private_files import DIRECTORY_MODE, read_text
from blackboard.units import Milliseconds, Revision
from blackboard.wire.codec import BYTES_KEY, decode_value

FORMAT: Final = 1
KEY_BYTES: Final = 32


class Seal:
    """A signing key; a `Sealer`. `trusted` are further public keys whose manifests are genuine."""

    def __init__(self, secret: bytes, *, trusted: Sequence[bytes] = ()) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = self._key.public_key().public_bytes_raw()
        self._trusted = {self.public, *trusted}

    def seal(self, cut: Cut) -> tuple[bytes, bytes]:
        """The manifest of a checkpoint (canonical JSON), and its signature (64 bytes)."""
        manifest = manifest_of(cut, self.public)
        return manifest, self._key.sign(manifest)

    def sign(self, said: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """As `Sealer.sign`."""
        manifest = _canonical({**said, "key": self.public.hex()})
        return manifest, self._key.sign(manifest)

    def findings(self, stored: StoredCheckpoint, cut: Cut | None) -> Sequence[str]:
        """As `Sealer.findings`."""
        try:
            said = read_manifest(stored.manifest)
            signer = bytes.fromhex(said["key"])
        except (Corrupt, KeyError, TypeError, ValueError):
            return ["the manifest is damaged: it cannot be read"]
        except NewerFormat as error:
            return [str(error)]
        found = []
        if signer not in self._trusted:
            found.append(f"the manifest is signed by an unknown key, {signer.hex()}")
        if not is_signed(stored.manifest, stored.signature, signer):
            found.append("the manifest's signature does not fit")
        if cut is None:
            return found
        should = read_manifest(manifest_of(cut, signer))
        found += [
            f"the manifest's {name} is not that of the board"
            for name in sorted(said.keys() | should.keys())
            if said.get(name) != should.get(name)
        ]
        if not found and stored.manifest != manifest_of(cut, signer):
            found.append("the manifest is not in its canonical form")
        return found


def manifest_of(cut: Cut, public: bytes) -> bytes:
    """The manifest of a checkpoint, to be signed with the key that belongs to `public`."""
    epoch = cut.epoch
    said: dict[str, Any] = {
        "format": FORMAT,
        "key": public.hex(),
        "board": cut.board,
        "checkpoint": cut.name,
        "revision": cut.revision,
        "time_ms": cut.time_ms,
        "author": cut.author,
        "epoch": [epoch.number, epoch.id, epoch.cause, epoch.from_revision, epoch.revision],
        "chain": cut.chain.hex(),
        "digests": {name: digest.hex() for name, digest in cut.facts.digests.items()},
        "agents": {name: list(step) for name, step in cut.facts.steps.items()},
        "declared": {name: decode_value(v) for name, v in cut.declared.items()},
        "record": decode_value(cut.record),
        "previous": cut.previous.hex(),
    }
    memory = _memory(said["record"], cut.facts.steps)
    if memory is not None:
        said["memory"] = memory
    return _canonical(said)


def _canonical(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said, sort_keys=True, separators=(",", ":"), default=_wrapped).encode()


def _memory(record: Any, steps: Mapping[str, Step]) -> dict[str, Revision] | None:
    """The revision of the memory in the cut, for each agent that delivered: that of its last
    commit. None for a checkpoint without a barrier, or whose barrier ended before the cut."""
    barrier = record.get("barrier") if isinstance(record, dict) else None
    if not isinstance(barrier, dict) or not barrier.get("until_cut"):
        return None
    return {name: steps[name][0] for name in barrier["delivered"] if name in steps}


def _wrapped(value: bytes) -> dict[str, str]:
    """Bytes in the form that all JSON of the project uses."""
    return {BYTES_KEY: base64.b64encode(value).decode()}


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
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, manifest)
    except (InvalidSignature, ValueError):
        return False
    return True


def read_key(path: Path) -> bytes:
    """The signing key in a file, or from a pipe. Errors: InvalidRequest."""
    return _key(path, lambda: path.read_text(encoding="ascii"))


def _key(path: Path, read: Callable[[], str]) -> bytes:
    try:
        secret = bytes.fromhex(read().strip())
    except (OSError, ValueError) as error:
        raise InvalidRequest(field="signing_key", reason=f"{path}: {error}") from error
    if len(secret) != KEY_BYTES:
        raise InvalidRequest(field="signing_key", reason=f"{path}: not {KEY_BYTES} bytes")
    return secret


def make_key(path: Path) -> bytes:
    """The signing key in a file. If the file does not exist, it is made, for its owner only.

    Errors: InvalidRequest.
    """
    try:
        if not path.exists():
            _write_key(path)
    except OSError as error:
        raise InvalidRequest(field="signing_key", reason=f"{path}: {error}") from error
    return _key(path, lambda: read_text(path))


def _write_key(path: Path) -> None:
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    disk.make_file(path, f"{secrets.token_hex(KEY_BYTES)}\n".encode())


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
