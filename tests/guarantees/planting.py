"""Faults that are planted in good histories, each to be found by the checker it is meant for."""

from collections.abc import Callable
from typing import Generic, TypeVar

H = TypeVar("H")


class Faults(Generic[H]):
    """The faults of one kind of history by name: which guarantee each breaks, and how.

    An instance is the decorator that notes one: `@fault("L1")`.
    """

    def __init__(self) -> None:
        self.planted: dict[str, tuple[str, Callable[[H], None]]] = {}

    def __call__(self, guarantee: str) -> Callable[[Callable[[H], None]], Callable[[H], None]]:
        """Note a fault that breaks `guarantee`."""

        def note(plant: Callable[[H], None]) -> Callable[[H], None]:
            self.planted[plant.__name__] = (guarantee, plant)
            return plant

        return note
