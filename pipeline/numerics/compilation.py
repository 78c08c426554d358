"""Compilation of functions that only kernels call, and a notice of compilation.

Numba optimizes each function and translates it to machine code, and does both again within each
kernel that calls it. Here only the kernels are optimized and translated, in half of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from numba import _dynfunc, njit, version_info  # type: ignore[attr-defined]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.event import Event, Listener, install_listener, register

F = TypeVar("F", bound=Callable[..., Any])
LATEST_NUMBA = (0, 68)
"""The latest version whose internals were tried here. Later ones compile functions as usual."""


def callee(**options: Any) -> Callable[[F], F]:
    """Return a decorator for functions that kernels call; Python would crash if it called one.

    `options` are those of `numba.njit`, without `cache`, because only kernels are cached. With
    fastmath, the order of sums may differ from that of a function that is optimized by itself.
    """
    options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    if version_info.short <= LATEST_NUMBA:
        options["pipeline_class"] = _CalleeCompiler
    decorator: Callable[[F], F] = njit(**options)
    return decorator


class _CalleeLibrary(JITCodeLibrary):
    """Code to link into callers. Numba calls these methods; if it did not, only time is lost."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


class _CalleeCompiler(Compiler):
    def compile_extra(self, function: Callable[..., Any]) -> Any:
        """Compile a function and register it for its callers, without a pointer for Python."""
        state = self.state
        codegen = state.targetctx.codegen()
        state.library = _CalleeLibrary(codegen, function.__qualname__)  # type: ignore[no-untyped-call]
        state.flags.no_compile = True
        result = super().compile_extra(function)  # type: ignore[no-untyped-call]
        key = _dynfunc.make_function(
            result.fndesc.lookup_module(), function.__name__, "", 0, result.environment, ()
        )
        result.target_context.insert_user_function(key, result.fndesc, [result.library])
        return result._replace(entry_point=key)


class _CollectionPause(Listener):
    """Pauses garbage collection, which finds little and takes a tenth of the time to compile."""

    def __init__(self) -> None:
        self._depth, self._was_enabled = 0, False

    def on_start(self, event: Event) -> None:
        """Pause at the outermost compilation; Numba's lock keeps other threads out."""
        if self._depth == 0:
            self._was_enabled = gc.isenabled()
            gc.disable()
        self._depth += 1

    def on_end(self, event: Event) -> None:
        """Collect garbage again after the outermost compilation."""
        self._depth -= 1
        if self._depth == 0 and self._was_enabled:
            gc.enable()


register("numba:compile", _CollectionPause())


@contextmanager
def watch_compilation(notify: Callable[[], None]) -> Iterator[None]:
    """Call `notify` once if this process compiles a function, which it does not find in a cache."""
    with install_listener("numba:compile", _CompilationListener(notify)):
        yield


class _CompilationListener(Listener):
    def __init__(self, notify: Callable[[], None]) -> None:
        self._pending = [notify]

    def on_start(self, event: Event) -> None:
        """Call `notify` at the first event; Numba's lock keeps other threads out."""
        if self._pending:
            self._pending.pop()()

    def on_end(self, event: Event) -> None:
        """Do nothing."""
