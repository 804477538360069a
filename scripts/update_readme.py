"""Writes the generated parts of README.md: supported ops (from the op registry and the planner's
refusals), environment variables, and the head of the newest benchmark results.

    python scripts/update_readme.py          rewrite README.md
    python scripts/update_readme.py --check  exit with 1 if it is not current

A generated part stands between ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from jaxmono import _config
from jaxmono.fusion import support
from jaxmono.hlo import ir, ops
from jaxmono.hlo.infer import elementwise
from jaxmono.hlo.passes import branches, complex_parts, fourier
from jaxmono.hlo.passes.rules import reduce_window, scatter, sort, top_k
from jaxmono.hlo.types import FOUR_BITS, DType, TensorType

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"


def supported_ops() -> str:
    """Every op of the registry: in a kernel, or left to XLA and why."""
    kinds = sorted(ops.UNARY | ops.BINARY | ops.TERNARY)
    own = ("accumulate", "elementwise", "fourier", "piece", "prefix", "stacked", "stored",
           "unknown", "window")
    others = sorted(o for o in ir.REGISTRY if o not in own)
    refused = {cls.opcode: reason for cls, reason in support.REFUSED_OPS.items()}
    refused["while"] = "loops with such ops in them, with loops of which nobody knows how often " \
        "they run, or of long trips; kernels may be in them (see Limits)"
    taken = [*kinds, *(o for o in others if o not in refused)]
    dtypes = [d.value for d in DType if d not in (*support.REFUSED_DTYPES, *FOUR_BITS)]
    lines = [
        "**In kernels**: " + ", ".join(f"`{name}`" for name in sorted(taken)) + ".",
        "",
        "**Element types**: " + ", ".join(f"`{name}`" for name in dtypes) + "; of 4 bits (" +
        ", ".join(f"`{d.value}`" for d in FOUR_BITS) + ", two in a byte as XLA packs them) what is "
        "read, moved, chosen and converted; XLA alone writes such, or calculates with them. "
        "Complex numbers are pairs of floats in kernels.",
        "",
        "**Left to XLA**:",
        "",
        "| op or type | why |",
        "|---|---|",
    ]
    reasons: dict[str, list[str]] = {}
    for name in others:
        if name in refused:
            reasons.setdefault(refused[name], []).append(name)
    for dtype, reason in support.REFUSED_DTYPES.items():
        known = dtype is not DType.OPAQUE
        reasons.setdefault(reason, []).append(dtype.value if known else "any other element type")
    reasons.setdefault(refused["unknown"], []).append("any other op")
    lines += [f"| {', '.join(n if ' ' in n else f'`{n}`' for n in names)} | {why} |"
              for why, names in reasons.items()]
    lines += ["", (
        f"By shape or use: shapes that are not known before run time or have more than "
        f"{support.MAX_RANK} dimensions; literals of more than {support.MAX_LITERAL_BYTES >> 10} "
        f"KiB, unless one element repeats; bitcasts between types of different width; reductions "
        f"in 8-bit floats, or with a body that is more than arithmetic on scalars; windows of more "
        f"than {reduce_window.MAX_READS} elements that read each element as often, but for "
        f"cumulative ones, and padded ones whose reducer is not a single op; more than "
        f"{top_k.MOST} largest elements of a line, or of types of 64 bits; max pools' "
        f"gradients with windows of more than {reduce_window.MAX_CHAIN // 2} elements; "
        f"branches of more than {branches.MOST_OPS} ops, or of values of more than "
        f"{branches.MOST_ELEMENTS >> 10} thousand elements; "
        f"scatters of several arrays, by products of floats where indices may be equal, or by "
        f"many products, of windows that are no "
        f"whole lines, of many updates in other types than f32, 16-bit floats and 32-bit integers, "
        f"or of more than some thousand in 16 bits to more than {scatter.MOST_WIDENED >> 20} "
        f"million elements, and sums of many updates in f32, whose order memory decides, where "
        f"`XLA_FLAGS` asks for deterministic ops; sorts that compare more than "
        f"{sort.MOST >> 20} million pairs of elements, but for "
        f"few lines of more than {sort.MOST >> 14}, or lines of more than {1 << 14}; "
        f"large products of 8-bit floats whose summed dimension is not "
        f"the last one of the left operand, or whose weights are [k][n] with n no multiple of 16; "
        f"of complex numbers sorts, convolutions, sums with other bodies than additions in windows "
        f"and scatters, and functions without a formula for their parts "
        f"({', '.join(f'`{kind}`' for kind in without_parts())}); "
        f"Fourier transforms of lengths above {fourier.CHIRPED} with a prime factor above "
        f"{fourier.LARGEST_PRIME}, or without two factors of up to {fourier.STEP[DType.F32]} "
        f"({fourier.STEP[DType.F64]} of f64); "
        f"products of f64 of {support.F64_PRODUCT >> 20} million multiplications and more, of more "
        f"than a few summed elements. `explain()` names each with its reason and source line.")]
    return "\n".join(lines)


def without_parts() -> list[str]:
    """Kinds that StableHLO has of complex numbers, too, and kernels have not."""
    of_both = {k for k in ops.UNARY | ops.BINARY if "c" in elementwise.CLASSES.get(k, "fc")}
    types = {1: ops.UNARY, 2: ops.BINARY}
    out: list[str] = []
    for count, kinds in types.items():
        z = tuple(ir.Value(TensorType((), DType.C64)) for _ in range(count))
        for kind in kinds & of_both:
            op = ops.Elementwise(results=z[:1], args=z, kind=kind)
            if complex_parts.refusal(op):
                out.append(kind)
    return sorted(out)


def results() -> str:
    """The telling lines of the newest run in benchmarks/results, and its plot."""
    if str(ROOT) not in sys.path:  # benchmarks/ is not part of the installed package
        sys.path.insert(0, str(ROOT))
    from benchmarks.report import head

    return head.part(ROOT)


PARTS: dict[str, Callable[[], str]] = {
    "supported ops": supported_ops,
    "environment": _config.table,
    "results": results,
}


def updated(text: str) -> str:
    """``text`` with every generated part written anew.

    Raises:
      ValueError: a part has no place in it.
    """
    for name, make in PARTS.items():
        start, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
        if start not in text or end not in text:
            raise ValueError(f"README.md has no place for {name!r}: add the lines {start} and "
                             f"{end}")
        pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
        block = f"{start}\n{make()}\n{end}"
        text = pattern.sub(lambda _, block=block: block, text)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the generated parts of README.md.")
    parser.add_argument("--check", action="store_true", help="do not write; fail if not current")
    check = parser.parse_args().check
    old = README.read_text()
    new = updated(old)
    if check and new != old:
        sys.stderr.write("README.md is not current: run python scripts/update_readme.py\n")
        return 1
    if not check:
        README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
