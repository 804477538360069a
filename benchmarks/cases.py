"""The programs that are measured: real models at fixed sizes, with fresh random or real inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from examples.models import bert, minilm, opt
from examples.sentences import shipped

Step = Callable[..., tuple[jax.Array, Any]]
"""``step(state, carry, *inputs) -> (out, carry)``. The first input holds i32 token ids; ``carry``
is what one call hands to the next (a cache), or (), and is donated."""


@dataclass(frozen=True)
class Case:
    """One program with its data.

    Attributes:
      title: for people.
      step: the program; ``state`` its weights.
      reference: the same model in f32 throughout; ``reference_state`` its weights, upcast.
      carry: initial; copy it before donating.
      inputs: sets to rotate through.
      normalised: rows of the output have length 1, so cosines are reported.
    """

    name: str
    title: str
    step: Step
    state: Any
    reference: Step
    reference_state: Any
    carry: Any
    inputs: tuple[tuple[jax.Array, ...], ...]
    normalised: bool = False


def bert_case(batch: int, *, length: int = 128, config: bert.BertConfig | None = None,
              sets: int = 4) -> Case:
    """BERT-base, token ids to pooled output, bf16, no padding."""
    sizes = bert.base() if config is None else config
    model = bert.create(sizes)
    inputs = []
    for key in jax.random.split(jax.random.key(1), sets):
        ids = jax.random.randint(key, (batch, length), 0, sizes.vocabulary, jnp.int32)
        inputs.append((ids, jnp.ones_like(ids)))
    step, state = _stateless("bert", *nnx.split(model))
    reference, reference_state = _upcast(model, bert.create, sizes)
    return Case(f"bert_b{batch}", f"BERT {sizes.layers} layers, b{batch} s{length} bf16", step,
                state, _stateless("bert", reference, reference_state)[0], reference_state, (),
                tuple(inputs))


def opt_case(*, length: int = 128, config: opt.OptConfig | None = None, sets: int = 4) -> Case:
    """One decoding step of OPT-125M at the last position of a full cache, donated."""
    sizes = opt.opt_125m() if config is None else config
    model = opt.create(sizes)
    keys = iter(jax.random.split(jax.random.key(2), 1000))
    cache = [tuple(jax.random.normal(next(keys), a.shape, a.dtype) for a in pair)
             for pair in opt.empty_cache(sizes, batch=1, length=length)]
    inputs = tuple((jax.random.randint(next(keys), (1,), 0, sizes.vocabulary, jnp.int32),
                    jnp.int32(length - 1)) for _ in range(sets))
    decode, state = opt.functional(model)
    graphdef, reference_state = _upcast(model, opt.create, sizes)

    def reference(state: Any, carry: Any, token: jax.Array, position: jax.Array) -> Any:
        wide = jax.tree.map(lambda a: a.astype(jnp.float32), carry)
        return nnx.merge(graphdef, state)(token, position, wide)

    return Case("opt_decode", f"OPT-125M decode, b1 context {length} bf16, cache donated", decode,
                state, reference, reference_state, cache, inputs)


def minilm_case(dtype: str, directory: Path | None = None, *, sets: int = 4) -> Case:
    """all-MiniLM-L6-v2 on the shipped sentences; the sets are the sentences in other orders."""
    kind: DTypeLike = {"f32": jnp.float32, "bf16": jnp.bfloat16}[dtype]
    sentences = shipped()
    tokens = minilm.load_tokenizer(directory)
    rotated = [sentences[i:] + sentences[:i] for i in range(sets)]
    inputs = tuple(tuple(jnp.asarray(a) for a in tokens(s)) for s in rotated)

    def program(model: Any) -> tuple[Step, Any]:
        fn, state = minilm.functional(model)

        def step(state: Any, carry: Any, ids: jax.Array, mask: jax.Array) -> Any:
            return fn(state, ids, mask), carry

        step.__name__ = "minilm"
        return step, state

    wide = minilm.load_pretrained(jnp.float32, directory)
    # The f32 weights rounded to dtype and back: the reference computes the same function.
    graphdef, state = nnx.split(wide)
    rounded = jax.tree.map(lambda a: a.astype(kind).astype(jnp.float32), state)
    batch, length = inputs[0][0].shape
    return Case(f"minilm_{dtype}", f"MiniLM, {batch} sentences, s{length} {dtype}",
                *program(minilm.load_pretrained(kind, directory)),
                *program(nnx.merge(graphdef, rounded)), (), inputs, normalised=True)


CASES: dict[str, Callable[[], Case]] = {
    "bert_b1": partial(bert_case, 1),
    "bert_b16": partial(bert_case, 16),
    "opt_decode": opt_case,
    "minilm_f32": partial(minilm_case, "f32"),
    "minilm_bf16": partial(minilm_case, "bf16"),
    # For trying the program out; not measured unless asked for.
    "tiny_bert": partial(bert_case, 2, length=32, config=bert.tiny()),
    "tiny_opt": partial(opt_case, length=32, config=opt.tiny()),
}
MEASURED = ("bert_b1", "bert_b16", "opt_decode", "minilm_f32", "minilm_bf16")


def make(name: str, weights: Path | None = None) -> Case:
    """The case of that name; ``weights`` is where MiniLM's are, if not in its package.

    Raises:
      minilm.NotInstalled, FileNotFoundError: MiniLM's weights are not there.
    """
    if name.startswith("minilm") and weights is not None:
        return minilm_case(name.removeprefix("minilm_"), weights)
    return CASES[name]()


def _stateless(name: str, graphdef: Any, state: Any) -> tuple[Step, Any]:
    """A step without carry that applies the model to its inputs."""

    def step(state: Any, carry: Any, *inputs: jax.Array) -> Any:
        return nnx.merge(graphdef, state)(*inputs), carry

    step.__name__ = name
    return step, state


def _upcast(model: Any, create: Callable[[Any], Any], sizes: Any) -> tuple[Any, Any]:
    """Graphdef and state of the same model computing in f32 on the same (rounded) weights."""
    wide = type(sizes)(**{**vars(sizes), "dtype": jnp.float32})
    graphdef, _ = nnx.split(nnx.eval_shape(lambda: create(wide)))
    return graphdef, jax.tree.map(lambda a: a.astype(jnp.float32), nnx.state(model))
