"""Importing this puts jaxtyping's shape checks and beartype on what is imported from calattn afterwards."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, get_type_hints

import jaxtyping
from beartype import beartype
from beartype.roar import BeartypeDecorHintException

# The parts that handle tensors. Of the others (specs, flags, data sets) beartype understands too little, and in `types` the
# checked constructors of data classes cannot be compiled.
PARTS = (
    *("backbones", "checks", "engine", "files.predictions", "heads", "losses", "metrics", "models", "posthoc"),
    *("readers", "report"),
)
_SIZES = jaxtyping.jaxtyped("context")  # sizes by name, of one call
_jaxtyped = jaxtyping.jaxtyped


def checked(function: Callable) -> Callable:
    """beartype, except where it cannot: methods that return `Self`, arguments that are protocols."""
    try:
        return beartype(function)
    except BeartypeDecorHintException:
        return function


def light(fn: Any = None, *, typechecker: Callable[[Callable], Callable]) -> Any:
    """`jaxtyping.jaxtyped` at a third of the cost: arguments are checked once, and not bound to names for its message."""
    if fn is None:
        return functools.partial(light, typechecker=typechecker)
    if not isinstance(fn, FunctionType):
        return _jaxtyped(fn, typechecker=typechecker)
    typed = typechecker(_resolved(fn))

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        with _SIZES:
            return typed(*args, **kwargs)

    return wrapped


def _resolved(fn: FunctionType) -> FunctionType:
    """A copy whose annotations are types; `Any` where one names what is not there yet, such as the class of a method."""
    copy = FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    functools.update_wrapper(copy, fn)
    copy.__kwdefaults__ = fn.__kwdefaults__
    copy.__annotations__ = {name: _type(hint, fn) for name, hint in fn.__annotations__.items()}
    del copy.__wrapped__
    return copy


def _type(hint: Any, fn: FunctionType) -> Any:
    def holder() -> None: ...

    holder.__annotations__ = {"value": hint}
    try:
        return get_type_hints(holder, fn.__globals__, include_extras=True)["value"]
    except Exception:
        return Any


jaxtyping.jaxtyped = light  # by which name the hook decorates
jaxtyping.install_import_hook([f"calattn.{part}" for part in PARTS], "tests.typecheck.checked")
