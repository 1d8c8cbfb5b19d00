"""The root of all errors: what every one of them has and can do."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar


@dataclass(eq=False)
class BlackboardError(Exception):
    """Root of the tree. Never raised itself."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def fields(self) -> dict[str, Any]:
        """The error's fields by name, all plain values (JSON types and bytes)."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self.fields().items() if value is not None)
        return f"{self.code}: {' '.join(shown)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self.fields().values())
