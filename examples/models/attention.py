"""Scaled dot-product attention, written out or by `jax.nn.dot_product_attention`."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp


def attend(query: jax.Array, key: jax.Array, value: jax.Array, *, scale: float,
           mask: jax.Array | None = None, bias: jax.Array | None = None,
           implementation: str | None = None,
           dropout: Callable[[jax.Array], jax.Array] | None = None) -> jax.Array:
    """Softmax of the scores in f32, weighted sum of the values in the operands' type.

    Args:
      query: [B, Q, H, D]. key, value: [B, K, G, D]; G divides H, each key head serves H / G query
        heads (grouped-query attention).
      scale: of the scores.
      mask: bool, broadcastable to [B, H, Q, K]; true where the query sees the key.
      bias: added to the scaled scores, broadcastable to [B, H, Q, K].
      implementation: None for the einsums below, else that of `jax.nn.dot_product_attention`.
      dropout: what becomes of the weights, [B, H, Q, K], of the einsums.

    Returns:
      [B, Q, H, D].
    """
    if dropout is not None and (implementation is not None or key.shape[2] != query.shape[2]):
        raise ValueError("attend: dropout is for einsums whose keys have as many heads as queries; "
                         f"implementation is {implementation!r}, {key.shape[2]} heads of keys "
                         f"serve {query.shape[2]} of queries")
    if implementation is not None:
        return jax.nn.dot_product_attention(query, key, value, bias, mask, scale=scale,
                                            implementation=implementation)
    if key.shape[2] != query.shape[2]:
        return _grouped(query, key, value, scale, mask, bias)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
    weights = _weights(scores * scale, mask, bias).astype(query.dtype)
    if dropout is not None:
        weights = dropout(weights)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def _grouped(query: jax.Array, key: jax.Array, value: jax.Array, scale: float,
             mask: jax.Array | None, bias: jax.Array | None) -> jax.Array:
    batch, length, heads, size = query.shape
    groups, keys = key.shape[2], key.shape[1]
    split = query.reshape(batch, length, groups, heads // groups, size)
    scores = jnp.einsum("bqgrd,bkgd->bgrqk", split, key, preferred_element_type=jnp.float32)
    flat = scores.reshape(batch, heads, length, keys) * scale
    weights = _weights(flat, mask, bias).astype(query.dtype).reshape(scores.shape)
    return jnp.einsum("bgrqk,bkgd->bqgrd", weights, value).reshape(query.shape)


def _weights(scores: jax.Array, mask: jax.Array | None, bias: jax.Array | None) -> jax.Array:
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jax.nn.softmax(scores, axis=-1)
