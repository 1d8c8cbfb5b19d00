"""Master keys, which wrap the data keys: from a file, the environment, a command, or a KMS.

`Wrapper` is the interface that a key management service has to implement; `LocalWrapper` implements
it with keys in this process. A secret holds one key a line, 32 bytes in hexadecimal. The first
wraps, all of them unwrap, so a master key can be rotated without touching a value.
"""

import asyncio
import hashlib
import secrets
import shlex
import signal
from collections.abc import Sequence
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from blackboard.errors import Corrupt, InvalidRequest
from blackboard.integrity.envelope import KEY_BYTES, NONCE_BYTES
from blackboard.limits import DEFAULT
from blackboard.signals import send_signal
from blackboard.units import Milliseconds

_ID_BYTES: Final = 8


class Wrapper(Protocol):
    """Wraps data keys, bound to the context where they belong."""

    @property
    def name(self) -> str:
        """The id of the master key that wraps now; it reveals nothing about the key."""

    async def wrap(self, key: bytes, context: bytes) -> bytes:
        """Wrap `key`, so that only the master key can unwrap it."""

    async def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """The inverse of `wrap`. Errors: Corrupt when it was altered, or wrapped by an unknown
        key."""


class LocalWrapper:
    """A `Wrapper` with keys of this process; the first one wraps."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise InvalidRequest("master_key", f"{KEY_BYTES} bytes in hexadecimal, one key a line")
        self._ciphers = {_id_of(key): AESGCM(key) for key in keys}
        self._first = _id_of(keys[0])

    @staticmethod
    def of(secret: str) -> "LocalWrapper":
        """From hexadecimal text. Errors: InvalidRequest, without the text."""
        try:
            keys = [bytes.fromhex(line) for line in secret.split()]
        except ValueError:
            keys = []
        return LocalWrapper(keys)

    @property
    def name(self) -> str:
        """As `Wrapper.name`."""
        return self._first.hex()

    async def wrap(self, key: bytes, context: bytes) -> bytes:
        """As `Wrapper.wrap`."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return self._first + nonce + self._ciphers[self._first].encrypt(nonce, key, context)

    async def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """As `Wrapper.unwrap`."""
        wrapper, rest = wrapped[:_ID_BYTES], wrapped[_ID_BYTES:]
        cipher = self._ciphers.get(wrapper)
        if cipher is None:
            reason = (
                f"it is wrapped by master key {wrapper.hex()}, which this service does not have"
            )
            raise Corrupt("a data key", f"{reason}: add its line, unless the data key was altered")
        try:
            return cipher.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], context)
        except (InvalidTag, ValueError) as error:
            raise Corrupt(
                "a data key", "it was altered: its master key does not unwrap it"
            ) from error


def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(b"blackboard master key\0" + key).digest()[:_ID_BYTES]


def new_master_key() -> str:
    """A fresh master key, in hexadecimal."""
    return secrets.token_hex(KEY_BYTES)


async def from_command(
    command: str, timeout_ms: Milliseconds = DEFAULT.encryption.key_command_timeout_ms
) -> LocalWrapper:
    """The keys that a command prints. Errors: InvalidRequest, without its output.

    The command is split as a shell would, and run without one. It may take `timeout_ms`.
    """
    try:
        program, *arguments = shlex.split(command)
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            # Nobody is there to answer a prompt.
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except (OSError, ValueError) as error:
        raise InvalidRequest("master_key_command", str(error)) from error
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            out, _ = await process.communicate()
    except TimeoutError as error:
        send_signal(process, signal.SIGKILL)
        await process.wait()
        raise InvalidRequest("master_key_command", "it did not end in time") from error
    if process.returncode != 0:
        raise InvalidRequest("master_key_command", f"it ended with {process.returncode}")
    return LocalWrapper.of(out.decode(errors="replace"))
