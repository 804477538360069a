"""Small constants that a function closes over stand in it, where they are folded.

    mean = jnp.array([0.48, 0.46, 0.41])          a literal of the kernel, not one more buffer
    jnp.where(jnp.array([0, 1, 1]), f, 1 - f)     f[0], f[1], f[2] or 1 - ...: no test is left

Operands of ``mono_call`` are what JAX traced, constants among them, so that its rules know of no
others. Weights stay operands: a kernel that has them as text is one for these weights alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.extend.mlir import ir

LARGEST = 1 << 10
"""Bytes."""


def small(args: Sequence[Any]) -> dict[int, ir.Operation]:
    """The operands of a call that are literals of at most `LARGEST` bytes, or repeat one element.
    """
    found: dict[int, ir.Operation] = {}
    for i, v in enumerate(jax.tree.leaves(args)):
        made = v.owner
        if not isinstance(made, ir.Block) and made.name == "stablehlo.constant" and _is_small(made):
            found[i] = made
    return found


def tag(constants: Mapping[int, ir.Operation]) -> str:
    """Tells functions apart whose constants differ; "" for none."""
    if not constants:
        return ""
    text = "".join(f"{i} {op.attributes['value']}\n" for i, op in constants.items())
    return f"_with_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def put_inside(function: ir.Operation, constants: Mapping[int, ir.Operation], first: int) -> None:
    """Copies of ``constants`` in place of the function's arguments, which stay, without users.
    first: of the arguments that are operands (lowering.first_operand)."""
    block = function.regions[0].blocks[0]
    with ir.InsertionPoint.at_block_begin(block):
        for i, op in constants.items():
            block.arguments[first + i].replace_all_uses_with(op.clone().results[0])


def _is_small(op: Any) -> bool:
    type_ = ir.RankedTensorType(op.results[0].type)
    width = getattr(type_.element_type, "width", 0)
    if not width:  # complex numbers, which no kernel has
        return False
    try:
        value = ir.DenseElementsAttr(op.attributes["value"])
    except ValueError:  # of a form that is for large ones
        return False
    return value.is_splat or math.prod(type_.shape) * width <= 8 * LARGEST
