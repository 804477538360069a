"""A model's weights, drawn once in a run.

Each case has a process of its own, and to draw the weights op by op and leaf by leaf takes seconds
in each (BERT-base on a CPU: 8 s). So the first process of a model leaves them in a folder of the
run, and those after it read the same bits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import supervise

MOST_BYTES = 4 << 30
"""Of a model; larger ones have one case."""


def leaves(draw: Callable[[], Any], name: str) -> tuple[tuple[jax.Array, ...], Any]:
    """The leaves and the structure of what ``draw`` returns.

    Args:
      name: of the model and its dtype; one for all that draw the same.
    """
    file = supervise.shared() / "weights" / name.replace(" ", "_") \
        if supervise.number() is not None else None
    if file is not None and file.exists():
        tree = jax.tree.structure(jax.eval_shape(draw))
        return tuple(jax.device_put(_read(file))), tree
    drawn, tree = jax.tree.flatten(draw())
    if file is not None and _can_keep(drawn):
        _write(file, drawn)
    return tuple(drawn), tree


def _can_keep(drawn: Sequence[Any]) -> bool:
    return sum(x.nbytes for x in drawn) <= MOST_BYTES and not any(
        jnp.issubdtype(x.dtype, jax.dtypes.extended) for x in drawn)


def _write(file: Path, drawn: Sequence[Any]) -> None:
    """A line of JSON with shapes and dtypes, then the bytes. At once: others may read it."""
    file.parent.mkdir(exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    with open(part, "wb") as out:
        out.write(json.dumps([(x.shape, x.dtype.name) for x in drawn]).encode() + b"\n")
        for x in drawn:
            out.write(np.asarray(x).tobytes())
    part.replace(file)


def _read(file: Path) -> list[np.ndarray]:
    with open(file, "rb") as lines:
        told, at = json.loads(lines.readline()), lines.tell()
    out = []
    for shape, name in told:
        dtype = jnp.dtype(name)
        count = int(np.prod(shape, dtype=np.int64))
        out.append(np.fromfile(file, dtype, count, offset=at).reshape(shape))
        at += count * dtype.itemsize
    return out
