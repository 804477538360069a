"""all-MiniLM-L6-v2 with its real weights on real sentences.

Weights and tokenizer come from the folder $MINILM_DIR, else from the package that carries them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.workloads.workload import Program, Request, Workload
from examples.models import bert, minilm
from examples.sentences import shipped


def _folder() -> Path | None:
    found = os.environ.get("MINILM_DIR")
    return Path(found) if found else None


def tokens(batch: int, *, tiny: bool = False) -> minilm.Tokens:
    """Token ids and mask of the sentences, i32[B, S] each; tiny: random ones, of 32 tokens.

    Raises:
      ValueError: there are not so many sentences.
    """
    if tiny:
        rng = np.random.default_rng(5)
        ids = rng.integers(0, bert.tiny().vocabulary, (batch, 32)).astype(np.int32)
        return ids, (np.arange(32) < rng.integers(4, 33, (batch, 1))).astype(np.int32)
    sentences = shipped()[:batch]
    if len(sentences) < batch:
        raise ValueError(f"batch={batch}: there are only {len(sentences)} sentences")
    return minilm.load_tokenizer(_folder())(sentences)


def _minilm(request: Request) -> Program:
    ids, mask = tokens(request.batch, tiny=request.tiny)
    if request.tiny:
        return _tiny(request, ids, mask)
    # Attributes: no published weights are read for the shapes.
    model = nnx.eval_shape(lambda: bert.Encoder(minilm.config(request.jax_dtype),
                                                rngs=nnx.Rngs(0)))

    def state() -> Any:
        return nnx.state(minilm.load_pretrained(request.jax_dtype, _folder()))

    return _program(nnx.split(model)[0], state, ids, mask)


def _tiny(request: Request, ids: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]) -> Program:
    """Random weights of two small layers: CI has no published ones."""
    config = bert.tiny(dtype=request.jax_dtype)

    def create() -> bert.Encoder:
        return bert.Encoder(config, rngs=nnx.Rngs(0))

    return _program(nnx.split(nnx.eval_shape(create))[0], lambda: nnx.state(create()), ids, mask)


def _program(graphdef: Any, state: Any, ids: np.ndarray[Any, Any],
             mask: np.ndarray[Any, Any]) -> Program:
    def step(state: Any, carry: Any, ids: jax.Array, mask: jax.Array) -> tuple[jax.Array, Any]:
        return minilm.embed(nnx.merge(graphdef, state), ids, mask), carry

    step.__name__ = "minilm"

    def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
        order = jax.random.permutation(key, len(ids))  # the sentences in another order
        return jnp.asarray(ids)[order], jnp.asarray(mask)[order]

    return Program(step, f"s{ids.shape[1]}", state=state, inputs=inputs)


WORKLOADS = (
    Workload("minilm", "all-MiniLM-L6-v2, real weights and sentences", "transformer", _minilm,
             batches=(32,), one_kernel=True),
    Workload("minilm_f32", "all-MiniLM-L6-v2 in f32, real weights and sentences", "transformer",
             _minilm, batches=(32,), dtype="f32", one_kernel=True),
)
