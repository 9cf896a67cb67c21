"""A property that is computed once, when somebody asks.

`functools.cached_property` does the same and takes a lock each time until Python 3.12; with twenty facts a request that
is a tenth of the time to decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):  # reads like property
    """Decorator; the value replaces the descriptor in the instance's `__dict__`."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> lazy[T] | T:
        """Compute and keep."""
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
