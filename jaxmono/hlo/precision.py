"""How exact the products of a dot_general have to be, by its attributes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

EXACT_VECTOR_ELEMENTS = 10_000_000
"""Elements of both operands below which XLA computes a product with a vector in exact f32."""


def allows_tf32(precision: tuple[str, str]) -> bool:
    """Whether f32 may be rounded to tf32: on a GPU HIGH is no more to JAX (`jax.lax.Precision`) and
    XLA than DEFAULT; the operand that asks for more counts."""
    return "HIGHEST" not in precision


@dataclass(frozen=True)
class Algorithm:
    """A dot algorithm.

    Attributes:
      lhs, rhs: what operands are rounded to, as StableHLO names types, in small letters.
      accumulation: the type of sums. components: parts of the operands that are named apart.
      products: of parts that make one of the operands. imprecise: sums may have fewer digits.
    """

    lhs: str
    rhs: str
    accumulation: str
    components: tuple[int, int]
    products: int
    imprecise: bool

    def rounds_to(self, lhs: str, rhs: str) -> bool:
        """Whether it is one product of operands of these types, with sums of f32."""
        return (self.lhs, self.rhs, self.accumulation, self.components, self.products) == (
            lhs, rhs, "f32", (1, 1), 1)


@lru_cache(maxsize=64)
def algorithm_of(text: str) -> Algorithm | None:
    """Of `ops.DotGeneral.algorithm`; None for "", which asks for nothing."""
    if not text:
        return None
    said = dict(re.findall(r"(\w+) = (\w+)", text.lower()))
    return Algorithm(
        said.get("lhs_precision_type", ""), said.get("rhs_precision_type", ""),
        said.get("accumulation_type", ""),
        (int(said.get("lhs_component_count", 0)), int(said.get("rhs_component_count", 0))),
        int(said.get("num_primitive_operations", 0)),
        said.get("allow_imprecise_accumulation") == "true")
