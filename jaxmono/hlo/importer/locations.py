"""MLIR locations to `Loc`: the innermost line of the user's own program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jax.extend.mlir import ir

from jaxmono.hlo.ir import UNKNOWN_LOC, Loc

# Frames of these packages say where a library built the op, not where the user asked for it.
_LIBRARY = re.compile(r"[\\/](?:site|dist)-packages[\\/](?:jax|jaxlib|flax|jaxmono)[\\/]"
                      r"|[\\/]jaxmono[\\/](?:_\w+|custom_call[\\/]\w+)\.py\Z|\A<frozen")


def _location(untyped: Any) -> ir.Location:
    """The bindings' stubs say ``object`` for some parts of a location."""
    return untyped


def _frames(location: ir.Location) -> Iterator[tuple[str, int]]:
    """File and line of every frame, innermost first."""
    if isinstance(location, ir.FileLineColLoc):
        yield location.filename, location.start_line
    elif isinstance(location, ir.NameLoc):
        yield from _frames(_location(location.child_loc))
    elif isinstance(location, ir.CallSiteLoc):
        yield from _frames(location.callee)
        yield from _frames(location.caller)
    elif isinstance(location, ir.FusedLoc):
        for child in location.locations:
            yield from _frames(_location(child))


def _name(location: ir.Location) -> str:
    """The outermost name, which is JAX's name stack (``jit(f)/add``)."""
    while not isinstance(location, ir.NameLoc):
        if isinstance(location, ir.CallSiteLoc):
            location = _location(location.callee)
        elif isinstance(location, ir.FusedLoc) and location.locations:
            location = _location(location.locations[0])
        else:
            return ""
    return location.name_str


class Locations:
    """Converts locations, each distinct one once."""

    def __init__(self) -> None:
        self._known: dict[ir.Location, Loc] = {}

    def loc(self, location: ir.Location, outer: Loc = UNKNOWN_LOC) -> Loc:
        """The Loc of ``location``.

        The first frame outside JAX, Flax and jaxmono is taken, else the innermost one. ``outer``
        is the place of the call through which the op was reached: its name goes in front (JAX
        names the ops of a private function relative to it), and its file and line are used where
        the op itself has no user frame.
        """
        found = self._known.get(location)
        if found is None:
            found = self._known[location] = _convert(location)
        if outer is UNKNOWN_LOC:
            return found
        name = found.name
        if outer.name and not name.startswith(outer.name.partition("/")[0]):
            name = f"{outer.name}/{name}" if name else outer.name
        if outer.file and (not found.file or _LIBRARY.search(found.file)):
            return Loc(outer.file, outer.line, name)
        return Loc(found.file, found.line, name)


def _convert(location: ir.Location) -> Loc:
    name = _name(location)
    first: tuple[str, int] | None = None
    for file, line in _frames(location):
        if not _LIBRARY.search(file):
            return Loc(file, line, name)
        first = first or (file, line)
    return Loc(first[0], first[1], name) if first else Loc(name=name)
