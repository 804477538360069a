"""What a workload is: a model's step with its data, at the sizes that were asked for.

The yardstick, the coverage table and the tests all run workloads, so that they speak of the same
programs. A workload is cheap to make: nothing is computed before `Program.state` and its
neighbours are called.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

Step: TypeAlias = Callable[..., tuple[Any, Any]]
"""``step(state, carry, *inputs) -> (outputs, carry)``; ``carry`` is what one call hands to the next
(a cache, weights under training), or (), and is donated."""

Family = Literal["transformer", "vision", "speech", "recurrent", "recommender", "micro"]

STANDARD = "standard"
"""The table of ``--models=all``."""

DTYPES: dict[str, DTypeLike] = {"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32}


@dataclass(frozen=True)
class Request:
    """The sizes wanted of a workload.

    Attributes:
      batch: examples per call.
      dtype: of weights and activations, a key of DTYPES.
      tiny: the small configuration that CI runs instead of the published one.
      attention: None for the model's own einsums, else the implementation of
        `jax.nn.dot_product_attention`: "xla" or "cudnn".
    """

    batch: int = 1
    dtype: str = "bf16"
    tiny: bool = False
    attention: str | None = None

    @property
    def jax_dtype(self) -> DTypeLike:
        return DTYPES[self.dtype]


@dataclass(frozen=True)
class Program:
    """A step and how to make its arguments.

    Attributes:
      step: the program.
      shape: what matters of the sizes besides the batch, for people: "s128", "224x224x3".
      state: () -> weights; every call gives the same values.
      inputs: key -> fresh random inputs of one call. Real distributions: token ids over the whole
        vocabulary, no zeros in place of data.
      carry: key -> the first carry.
      weights: () -> the state's shapes and dtypes, where they are known without tracing ``state``.
    """

    step: Step
    shape: str
    state: Callable[[], Any]
    inputs: Callable[[jax.Array], tuple[jax.Array, ...]]
    carry: Callable[[jax.Array], Any] = lambda key: ()
    weights: Callable[[], Any] | None = None

    def abstract(self) -> tuple[Any, ...]:
        """(state, carry, *inputs) as shapes and dtypes; nothing is computed."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        state = jax.eval_shape(self.state) if self.weights is None else self.weights()
        return state, jax.eval_shape(self.carry, key), *jax.eval_shape(self.inputs, key)


@dataclass(frozen=True)
class Workload:
    """A named program of the zoo.

    Attributes:
      name: as in ``--models``, e.g. "bert_base".
      title: for people.
      build: Request -> Program. With dtype "f32" the state has the same tree, so that the
        f32 program run on upcast weights is the reference.
      batches: of the standard table. dtype: of the standard table.
      one_kernel: a transformer's forward step, of which nothing may be refused.
      attention: accepts ``Request.attention``.
      jaxmono_attention: the ``Request.attention`` of jaxmono's side, where the default may be a
        library's call, of which it would have nothing to compile.
      search: its integers are a search's choice (token ids): see `benchmarks.errors`.
      slow: its tiny form takes longer than about ten seconds in the interpreter.
      notes: what a reader of the tables has to know, or "".
      table: "standard", or the name that ``--models`` knows a further table by.
    """

    name: str
    title: str
    family: Family
    build: Callable[[Request], Program]
    batches: tuple[int, ...] = (1,)
    dtype: str = "bf16"
    one_kernel: bool = False
    attention: bool = False
    jaxmono_attention: str | None = None
    search: bool = False
    slow: bool = False
    notes: str = ""
    table: str = STANDARD

    def program(self, **sizes: Any) -> Program:
        """The program at the sizes of a Request (defaults: batch 1, the table's dtype)."""
        return self.build(dataclasses.replace(Request(dtype=self.dtype), **sizes))


def module_program(create: Callable[[], nnx.Module], inputs: Callable[[jax.Array], Any], shape: str,
                   call: Callable[..., Any] | None = None, *, name: str) -> Program:
    """A program without carry around a Flax module.

    Args:
      create: makes the module; it is also traced for its shapes.
      call: ``call(module, *inputs)``; default ``module(*inputs)``.
      name: of the step, which names kernels.
    """
    graphdef = graph_of(create)

    def step(state: Any, carry: Any, *args: jax.Array) -> tuple[Any, Any]:
        module = nnx.merge(graphdef, state)
        return (module(*args) if call is None else call(module, *args)), carry

    step.__name__ = name
    return Program(step, shape, state=lambda: jittered(create()), inputs=inputs,
                   weights=lambda: shapes_of(create))


_TRACED: dict[Any, tuple[Any, Any]] = {}


def graph_of(create: Callable[[], nnx.Module]) -> Any:
    """The module's graph definition, without its values."""
    return _traced(create)[0]


def shapes_of(create: Callable[[], nnx.Module]) -> Any:
    """The module's state as shapes and dtypes."""
    return _traced(create)[1]


def _traced(create: Callable[[], nnx.Module]) -> tuple[Any, Any]:
    """The module's graph definition and its state, as shapes.

    Tracing the constructor takes seconds for a large model, and a case asks for it up to four times
    (f32, attention), at every batch. The same code over the same configuration makes the same
    graph.
    """
    cells = getattr(create, "__closure__", None) or ()
    key = getattr(create, "__code__", create), *(cell.cell_contents for cell in cells)
    try:
        known = _TRACED.get(key)
    except TypeError:  # it closes over something that cannot be compared
        return nnx.split(nnx.eval_shape(create))
    if known is None:
        known = _TRACED[key] = nnx.split(nnx.eval_shape(create))
    return known


def jittered(module: nnx.Module, seed: int = 7) -> Any:
    """The module's state with values in place of the constants that initialisers leave.

    Biases of zero and scales of one would hide errors (and be folded away by an honest compiler
    that could see them): biases and means get noise of 0.1, scales and variances a factor near 1.
    """
    state = nnx.state(module)
    leaves, tree = jax.tree_util.tree_flatten_with_path(state)
    rng = np.random.default_rng(seed)

    def value(path: Any, leaf: jax.Array) -> jax.Array:
        names = {str(getattr(p, "key", getattr(p, "name", p))) for p in path}
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        noise = jnp.asarray(0.1 * rng.standard_normal(leaf.shape), leaf.dtype) \
            if names & _CONSTANT else None
        if noise is None:
            return leaf
        return leaf * (1 + noise) if names & {"scale", "var"} else leaf + noise

    if any(isinstance(leaf, jax.core.Tracer) for _, leaf in leaves):
        return state
    return jax.tree.unflatten(tree, [value(path, leaf) for path, leaf in leaves])


def scaled(create: Callable[[], nnx.Module]) -> Any:
    """The model's state with values of NumPy: kernels of the size that keeps the activations' (He
    et al.), the rest with noise as in `jittered`.

    JAX would compile a random generator for each of the many shapes of kernels: 30 s of a core for
    the tiny Inception-v3.
    """
    rng = np.random.default_rng(0)

    def value(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.Array:
        names = {str(getattr(p, "key", getattr(p, "name", p))) for p in path}
        noise = rng.standard_normal(leaf.shape, np.float32)
        if names & {"scale", "var"}:
            noise = 1 + 0.1 * noise
        elif names & {"bias", "mean"}:
            noise = 0.1 * noise
        else:
            noise *= np.sqrt(2 / np.prod(leaf.shape[:-1]))  # over the inputs of an output
        return jnp.asarray(noise.astype(leaf.dtype))

    return jax.tree_util.tree_map_with_path(value, shapes_of(create))


def amid_training(state: Any, key: jax.Array, steps: int = 1000) -> Any:
    """The state of an optax optimiser with moments as they are after so many steps: behind a first
    step's zeros a weight moves by the sign of its gradient, however little that is."""
    def filled(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.full_like(leaf, steps)
        own = jax.random.fold_in(key, zlib.crc32(jax.tree_util.keystr(path).encode()))
        noise = jax.random.normal(own, leaf.shape, leaf.dtype) * 1e-3
        squares = {".nu", ".v", ".v_row", ".v_col"} & {str(p) for p in path}
        return noise * noise + 1e-6 if squares else noise

    return jax.tree_util.tree_map_with_path(filled, state)


_CONSTANT = {"bias", "scale", "mean", "var"}


def token_ids(key: jax.Array, shape: tuple[int, ...], vocabulary: int) -> jax.Array:
    """Uniform i32 token ids."""
    return jax.random.randint(key, shape, 0, vocabulary, jnp.int32)
