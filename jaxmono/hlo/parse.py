"""Text to Graph: the inverse of ``print.py``, ``to_text(parse(t)) == t``."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any, NamedTuple, NoReturn

from jaxmono.hlo import literal
from jaxmono.hlo.ir import REGISTRY, UNKNOWN_LOC, Graph, Loc, Op, Value
from jaxmono.hlo.ops import BINARY, QUATERNARY, TERNARY, UNARY, Elementwise
from jaxmono.hlo.types import Dim, DType, SymDim, TensorType


class ParseError(ValueError):
    """The text is no Graph; the message names the line."""


def parse(text: str) -> Graph:
    """The Graph that ``print.to_text`` wrote as ``text``.

    Raises:
      ParseError: naming the line number and what was expected there.
    """
    return _Parser(text).graph()


_TOKEN = re.compile(r"""
    (?P<skip>[ \t]+)
  | (?P<newline>\n)
  | (?P<loc>//[^\n]*)
  | (?P<value>%\d+)
  | (?P<array>[a-z]\w*\[[^\]\n]*\]<[^>\n]*>)
  | (?P<type>[a-z]\w*\[(?![^\]\n]*["=\[])[^\]\n]*\])
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<dtype>@\w+)
  | (?P<int>-?\d+)
  | (?P<word>[A-Za-z_][\w.]*)
  | (?P<punct>[(){}\[\]=,;:])
""", re.VERBOSE)
_LOC = re.compile(r"(?:<unknown>|(.*?):(\d+))(?: \((.*)\))?\Z", re.DOTALL)
_KEYWORDS: dict[str, Any] = {"none": None, "true": True, "false": False}


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def _tokens(text: str) -> list[_Token]:
    out: list[_Token] = []
    at, line = 0, 1
    while at < len(text):
        m = _TOKEN.match(text, at)
        if m is None:
            end = text.find("\n", at)
            rest = text[at : end if end >= 0 else len(text)]
            raise ParseError(f"line {line}: cannot read {rest[:40]!r}")
        kind = m.lastgroup or ""
        if kind not in ("skip", "newline"):
            out.append(_Token(kind, m.group(), line))
        line += m.group().count("\n")
        at = m.end()
    out.append(_Token("end", "", line))
    return out


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = _tokens(text)
        self.at = 0
        self.values: dict[str, Value] = {}

    @property
    def next(self) -> _Token:
        return self.tokens[self.at]

    def fail(self, wanted: str) -> NoReturn:
        raise ParseError(f"line {self.next.line}: expected {wanted}, found {self.next.text!r}")

    def take(self, kind: str, wanted: str = "") -> str:
        if self.next.kind != kind:
            self.fail(wanted or f"a {kind}")
        self.at += 1
        return self.tokens[self.at - 1].text

    def accept(self, punct: str) -> bool:
        if self.next.text == punct and self.next.kind in ("punct", "word"):
            self.at += 1
            return True
        return False

    def expect(self, punct: str) -> None:
        if not self.accept(punct):
            self.fail(repr(punct))

    def graph(self) -> Graph:
        self.expect("graph")
        name = self.attribute()
        inputs = self.parameters()
        if self.accept("captures"):
            self.parameters()
        graph = self.body(str(name), inputs)
        self.take("end", "the end of the text")
        return graph

    def define(self, name: str, type: TensorType) -> Value:
        if name in self.values:
            self.fail(f"a value defined once; {name} is defined twice")
        self.values[name] = value = Value(type)
        return value

    def use(self) -> Value:
        name = self.take("value")
        if name not in self.values:
            self.at -= 1
            self.fail("a value that is defined above")
        return self.values[name]

    def parameters(self) -> tuple[Value, ...]:
        self.expect("(")
        out: list[Value] = []
        while not self.accept(")"):
            if out:
                self.expect(",")
            name = self.take("value")
            self.expect(":")
            out.append(self.define(name, self.type()))
        return tuple(out)

    def type(self) -> TensorType:
        return _type(self.take("type"))

    def body(self, name: str, inputs: tuple[Value, ...]) -> Graph:
        self.expect("{")
        ops: list[Op] = []
        while not self.accept("return"):
            ops.append(self.op())
        outputs: list[Value] = []
        while not self.accept("}"):
            if outputs:
                self.expect(",")
            outputs.append(self.use())
        return Graph(inputs, tuple(ops), tuple(outputs), name)

    def op(self) -> Op:
        names: list[str] = []
        types: list[TensorType] = []
        if self.next.kind == "value":
            names.append(self.take("value"))
            while self.accept(","):
                names.append(self.take("value"))
            self.expect("=")
            types.append(self.type())
            while self.accept(","):
                types.append(self.type())
            if len(names) != len(types):
                self.fail(f"{len(names)} result types, not {len(types)},")
        word = self.take("word", "an op name")
        fields: dict[str, Any] = {}
        cls = REGISTRY.get(word)
        if any(word in kinds for kinds in (UNARY, BINARY, TERNARY, QUATERNARY)):
            cls, fields["kind"] = Elementwise, word
        if cls is None:
            self.at -= 1
            self.fail("the name of an op")
        fields.update(self.operands(cls))
        fields.update(self.attributes(cls))
        loc = _loc(self.take("loc")[2:].strip()) if self.next.kind == "loc" else UNKNOWN_LOC
        results = tuple(self.define(n, t) for n, t in zip(names, types, strict=True))
        fields.update(self.regions(cls))
        missing = [f.name for f in cls.declared("attribute")
                   if f.default is dataclasses.MISSING and f.name not in fields]
        if missing:
            self.fail(f"the attribute {missing[0]} of {word} before this")
        return cls(results=results, loc=loc, **fields)

    def operands(self, cls: type[Op]) -> dict[str, Any]:
        groups: list[list[Value]] = [[]]
        self.expect("(")
        while not self.accept(")"):
            if self.accept(";"):
                groups.append([])
            elif self.next.kind == "value":
                groups[-1].append(self.use())
            else:
                self.expect(",")
        declared = cls.declared("operand", "operands")
        variadic = cls.declared("operands")
        if len(variadic) <= 1 and len(groups) == 1:
            flat, extra = groups[0], len(groups[0]) - (len(declared) - len(variadic))
            groups, start = [], 0
            for f in declared:
                count = extra if f in variadic else 1
                groups.append(flat[start : start + max(count, 0)])
                start += max(count, 0)
            groups += [[v] for v in flat[start:]]
        right = len(groups) == len(declared) and all(
            f in variadic or len(g) == 1 for f, g in zip(declared, groups, strict=True))
        if not right:
            self.fail(f"operands for ({', '.join(f.name for f in declared)}) before this")
        return {f.name: tuple(g) if f in variadic else g[0]
                for f, g in zip(declared, groups, strict=True)}

    def attributes(self, cls: type[Op]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        known = {f.name for f in cls.declared("attribute")}
        if not self.accept("{"):
            return out
        while not self.accept("}"):
            if out:
                self.expect(",")
            if self.next.text not in known:
                self.fail(f"an attribute of {cls.opcode} ({', '.join(sorted(known))})")
            name = self.take("word")
            self.expect("=")
            out[name] = self.attribute()
        return out

    def attribute(self) -> Any:
        kind, text, line = self.next
        if self.accept("["):
            items: list[Any] = []
            while not self.accept("]"):
                if items:
                    self.expect(",")
                items.append(self.attribute())
            return tuple(items)
        self.at += 1
        try:
            if kind == "int":
                return int(text)
            if kind == "string":
                return json.loads(text)
            if kind == "word":
                return _KEYWORDS.get(text, text)
            if kind == "dtype":
                return DType(text[1:])
            if kind == "array":
                type, _, contents = text.partition("<")
                return literal.array_value(_type(type), contents[:-1])
        except ValueError as e:
            raise ParseError(f"line {line}: {e}") from e
        self.at -= 1
        self.fail("an attribute value")

    def regions(self, cls: type[Op]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        several = {f.name for f in cls.declared("regions")}
        for f in cls.declared("region", "regions"):
            held: list[Graph] = []
            while self.next.text == f.name and (not held or f.name in several):
                self.take("word")
                held.append(self.body(f.name, self.parameters()))
            if f.name not in several and not held:
                self.fail(f"the region {f.name} of {cls.opcode}")
            out[f.name] = tuple(held) if f.name in several else held[0]
        return out


def _type(text: str) -> TensorType:
    name, _, inner = text[:-1].partition("[")
    try:
        dtype = DType(name)
    except ValueError as e:
        raise ParseError(f"{text!r} has no known element type") from e
    dims: list[Dim] = []
    for d in filter(None, inner.split(",")):
        dims.append(int(d) if d.strip().isdigit() else SymDim(d.strip()))
    return TensorType(tuple(dims), dtype)


def _loc(text: str) -> Loc:
    if "\\" in text:
        quoted = text.replace('"', '\\"')
        text = json.loads(f'"{quoted}"')
    m = _LOC.match(text)
    if m is None:
        return Loc(name=text)
    return Loc(m.group(1) or "", int(m.group(2) or 0), m.group(3) or "")
