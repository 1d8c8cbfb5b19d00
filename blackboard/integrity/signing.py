"""Making and checking manifests: canonical JSON, signed with Ed25519 (RFC 8032).

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
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from blackboard.core.checkpoints import Cut, Step, StoredCheckpoint
from blackboard.engines import disk
from blackboard.errors import Corrupt, InvalidRequest, NewerFormat
from blackboard.integrity.manifest import FORMAT, is_signed, read_manifest
from blackboard.integrity.private_files import DIRECTORY_MODE, read_text
from blackboard.units import Revision
from blackboard.wire.codec import BYTES_KEY, decode_value
from blackboard.wire.frames import JSON, exported_out

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
        # Through JSON, as the other side: a tuple would not be equal to its list.
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
        # Encrypted ones stay so: the archive has no keys, and anybody may check a manifest.
        "declared": {name: exported_out(v, JSON) for name, v in cut.declared.items()},
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
