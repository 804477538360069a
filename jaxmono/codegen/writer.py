"""A small indenting writer for C++, and the file-scope declarations that bodies ask for."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

_TYPES = ("f16", "bf16")
"""Of the device library, which no variable may hide."""


@dataclass(eq=False)
class Block:
    """Statements of a writer between braces.

    Attributes:
      at: number of the line behind those that are at its begin (`Writer.early`).
    """

    at: int = 0


class Writer:
    """Lines of C++ at an indentation, with fresh names.

    Attributes:
      lines: the text so far.
      declarations: file-scope text (constant tables, reducer structs) by name; shared with the
        writers made by `child`. The kernel prints them before all functions.
    """

    def __init__(self, *, indent: int = 0, parent: Writer | None = None) -> None:
        self.lines: list[str] = []
        self.declarations: dict[str, str] = {} if parent is None else parent.declarations
        self._names: dict[str, int] = {} if parent is None else parent._names
        self._indent = indent
        self._blocks = [Block()]

    @property
    def innermost(self) -> Block:
        """The innermost block that is open; without one, all of the writer's lines."""
        return self._blocks[-1]

    def child(self) -> Writer:
        """A writer of its own lines, one level deeper, that shares names and declarations."""
        return Writer(indent=self._indent + 1, parent=self)

    def fresh(self, prefix: str = "v") -> str:
        """A C identifier not handed out before by this writer or its children."""
        n = self._names.get(prefix, 0)
        if f"{prefix}{n}" in _TYPES:
            n += 1
        self._names[prefix] = n + 1
        return f"{prefix}{n}"

    def line(self, text: str = "", comment: str = "") -> None:
        if comment:
            text = f"{text}  // {comment}"
        self.lines.append("  " * self._indent + text if text else "")

    def early(self, text: str) -> None:
        """A line at the begin of the innermost block that is open, behind others of these."""
        self.lines.insert(self.innermost.at, "  " * self._indent + text)
        self.innermost.at += 1

    def extend(self, other: Writer, deeper: int = 0) -> None:
        """Appends the lines of a `child`, which carry their indentation, ``deeper`` levels in."""
        pad = "  " * deeper
        self.lines.extend(pad + x if x and not x.startswith("#") else x for x in other.lines)

    def comment(self, text: str) -> None:
        for part in text.splitlines():
            self.line(f"// {part}".rstrip())

    def directive(self, text: str) -> None:
        """A preprocessor line, at column 0."""
        self.lines.append(text)

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Generator[None]:
        """``head {`` ... ``tail``, the lines between them indented."""
        self.line(f"{head} {{" if head else "{")
        self._indent += 1
        self._blocks.append(Block(len(self.lines)))
        try:
            yield
        finally:
            self._blocks.pop()
            self._indent -= 1
            self.line(tail)

    def declare(self, key: str, prefix: str, text: str) -> str:
        """File-scope text, once per ``key``; ``{name}`` in it becomes the name that is returned."""
        known = f"\0{key}"
        if known not in self.declarations:
            name = self.fresh(prefix)
            self.declarations[known] = name
            self.declarations[name] = text.replace("{name}", name)
        return self.declarations[known]

    def declared(self) -> str:
        """All file-scope text, in the order in which it was asked for."""
        return "\n".join(t for k, t in self.declarations.items() if not k.startswith("\0"))

    def text(self) -> str:
        return "\n".join(self.lines) + "\n" if self.lines else ""
