"""The Program: one compiled kernel with all that is needed to launch it.

Serialised form (no pickle, readable by any language):

    8 bytes magic | 32 bytes SHA-256 of the rest | 8 bytes header length, little endian
    | header: JSON, UTF-8 | binary
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, fields
from typing import Any

from jaxmono.hlo.types import Dim, DType, SymDim, TensorType

_MAGIC = b"JAXMONO1"
_DIGEST = 32
_LENGTH = 8
_TYPE = re.compile(r"(\w+)\[([^\]]*)\]\Z")


class ProgramFormatError(ValueError):
    """Bytes that are no intact serialised Program."""


A_BLOCK_A_TASK = 0
"""In place of a number of blocks: the grid is as large as there are tasks, which the GPU gives to
the multiprocessors as they are done with others. In a grid that fits, of which each block takes as
many tasks, loops that only stream took up to 7 % longer on an H100."""


@dataclass(frozen=True)
class Program:
    """One kernel: source, binary and launch configuration.

    The binary exports one ``__global__`` function ``name`` that takes one parameter by value,
    ``struct { void* buf[N]; }``: inputs, outputs, and scratch if ``scratch_bytes`` > 0. For the
    target "interpret" it is a shared object that exports ``jaxmono_emulate``.

    Attributes:
      target: "cuda" or "interpret".
      arch: "sm_90a", or the host's triple for "interpret".
      source: readable and self-contained.
      binary: cubin, or ELF shared object.
      threads: per block.
      blocks_per_sm: the most blocks that one SM shall run, or `A_BLOCK_A_TASK`.
      max_blocks: more blocks than this would idle; the grid is never larger.
      min_blocks: blocks that wait for each other, and so must run together.
      shared_bytes: dynamic shared memory per block.
      scratch_bytes: device memory for values between stages.
      cooperative: blocks wait for each other, so all must be resident together.
      overlaps: may be launched before what runs in front of it in its stream is done (programmatic
        stream serialization); the kernel waits for that itself. In a stream it takes 1.1 to 1.5 us
        less so on an H200; a cooperative launch as long, so none has it.
      aliases: (output index, input index) pairs that are the same buffer, updated in place.
      stages, barriers: phases, and grid barriers that one launch executes.
      resources: registers, spill_stores, spill_loads, static_shared (bytes; per thread or block),
        serialized (functions whose wgmmas wait for each other).
      compile_seconds: what generating and compiling took when it was done.
    """

    name: str
    target: str
    arch: str
    source: str
    binary: bytes = field(repr=False)
    threads: int
    blocks_per_sm: int
    max_blocks: int
    shared_bytes: int
    scratch_bytes: int
    cooperative: bool
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    aliases: tuple[tuple[int, int], ...]
    stages: int
    barriers: int
    resources: dict[str, int]
    plan_text: str
    compile_seconds: float
    min_blocks: int = 1
    overlaps: bool = False

    @property
    def buffers(self) -> int:
        """Number of pointers that the kernel takes."""
        return len(self.inputs) + len(self.outputs) + (self.scratch_bytes > 0)

    def to_bytes(self) -> bytes:
        """The serialised form; see the module's text."""
        header: dict[str, Any] = {}
        for f in fields(self):
            if f.name != "binary":
                header[f.name] = getattr(self, f.name)
        header["inputs"] = [str(t) for t in self.inputs]
        header["outputs"] = [str(t) for t in self.outputs]
        text = json.dumps(header, sort_keys=True).encode()
        body = len(text).to_bytes(_LENGTH, "little") + text + self.binary
        return _MAGIC + hashlib.sha256(body).digest() + body

    @classmethod
    def from_bytes(cls, data: bytes) -> Program:
        """The Program that ``to_bytes`` wrote.

        Raises:
          ProgramFormatError: another format version, damaged bytes, or fields that do not fit.
        """
        start = len(_MAGIC) + _DIGEST
        if data[:len(_MAGIC)] != _MAGIC:
            raise ProgramFormatError("it does not begin as a jaxmono program of this version")
        body = data[start:]
        if hashlib.sha256(body).digest() != data[len(_MAGIC):start]:
            raise ProgramFormatError("its checksum does not match: it is damaged or cut short")
        end = _LENGTH + int.from_bytes(body[:_LENGTH], "little")
        try:
            header = json.loads(body[_LENGTH:end])
            header["inputs"] = tuple(_type(t) for t in header["inputs"])
            header["outputs"] = tuple(_type(t) for t in header["outputs"])
            header["aliases"] = tuple((int(o), int(i)) for o, i in header["aliases"])
            return cls(binary=body[end:], **header)
        except (KeyError, TypeError, ValueError) as error:
            raise ProgramFormatError(f"its header does not fit: {error}") from error


def _type(text: str) -> TensorType:
    m = _TYPE.match(text)
    if m is None:
        raise ValueError(f"{text!r} is no tensor type")
    words = m[2].split(",") if m[2] else []
    shape: tuple[Dim, ...] = tuple(int(w) if w.isdigit() else SymDim(w) for w in words)
    return TensorType(shape, DType(m[1]))
