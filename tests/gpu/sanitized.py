"""Runs generated kernels and next to nothing else, for `compute-sanitizer` to watch.

    PYTHONPATH=.:tests python tests/gpu/sanitized.py NUMBER...

A tiny BERT, a tiny decoder, and the batches of random programs with these numbers.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np
from batches import batch
from small_models import bert_data, opt_data

import jaxmono
from examples.models import bert, opt


def run(function: Any, args: Any) -> None:
    """One call on the GPU, which has to be generated kernels as far as they go."""
    compiled = jaxmono.jit(function).lower(*args).compile()
    out = jax.device_get(compiled(*jax.device_put(args, jax.devices()[0])))
    kernels = compiled.explain().kernels
    sys.stdout.write(f"{kernels} kernels, {len(jax.tree.leaves(out))} results\n")


def main(numbers: list[int]) -> None:
    """Everything; what is not a generated kernel is prepared on the CPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        cases = [bert_data(2, length=16, config=bert.tiny(), sets=1),
                 opt_data(length=16, config=opt.tiny(), sets=1)]
        arguments = [jax.tree.map(np.asarray, case.arguments()) for case in cases]
    for case, args in zip(cases, arguments, strict=True):
        run(case.program.step, args)
    for number in numbers:
        programs = batch(number)
        with programs.context():
            run(programs.fun, (programs.args,))


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]])
