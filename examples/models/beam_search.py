"""Beam search in lax control flow, so that a whole generation is one jittable function.

Keeps the ``width`` most probable continuations; those that end are set aside with their
log-probability divided by a power of their length. The rules are those of transformers 5,
``generate(num_beams=width, do_sample=False, early_stopping=False)``: of each step's ``2 * width``
best candidates the best that do not end go on, those that end within the first ``width`` are kept,
and the search stops when no open beam can beat the worst of ``width`` kept ones at its present
length.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

_NEVER = -1e9
"""The score of what must not be chosen."""


class Step(Protocol):
    """One decoding step of all beams."""

    def __call__(self, token: jax.Array, position: jax.Array, cache: Any,
                 ) -> tuple[jax.Array, Any]:
        """token: i32[B * width] at ``position``, i32[]. Returns logits [B * width, V], cache."""
        ...


class _State(NamedTuple):
    """``length`` tokens are written of each row; W beams, L tokens at most.

    Attributes:
      open, open_score: i32[B, W, L], f32[B, W], the beams that go on; best first.
      kept, kept_score, kept_done: the best finished ones; those not ``kept_done`` are room.
      improvable: bool[B, 1], whether an open beam of the example can still be kept.
      going: bool[].
    """

    length: jax.Array
    open: jax.Array
    open_score: jax.Array
    kept: jax.Array
    kept_score: jax.Array
    kept_done: jax.Array
    improvable: jax.Array
    going: jax.Array
    cache: Any


def beam_search(step: Step, logits: jax.Array, cache: Any, prompt: jax.Array, *, width: int,
                length: int, end: int, length_penalty: float = 1.0,
                ) -> tuple[jax.Array, jax.Array]:
    """The most probable continuation of each prompt that the search finds.

    Args:
      logits: [B, V], of the token after the prompt.
      cache: of the prompt, a tree of arrays [B, length or more, ...] that ``step`` takes with B
        times ``width`` rows.
      prompt: i32[B, P], without padding.
      width: number of beams. length: of prompt and continuation together, at most.
      end: the token that ends a sequence; -1 for none.
      length_penalty: the power of the continuation's length that divides its log-probability.

    Returns:
      i32[B, length], the prompt and its continuation, filled up with ``end``; and f32[B], the
      log-probability over the power of the length.

    Raises:
      ValueError: a size does not fit the others.
    """
    batch, prompted = prompt.shape
    if not prompted < length:
        raise ValueError(f"length={length} leaves no token to generate after a prompt of "
                         f"{prompted}; ask for more")
    if not 1 <= width <= logits.shape[-1] // 2:
        raise ValueError(f"width={width} must be between 1 and half of the vocabulary, "
                         f"{logits.shape[-1]}")

    def choose(state: _State, logits: jax.Array) -> _State:
        """The state after the next token; logits: [B * W, V]."""
        words = logits.shape[-1]
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        totals = log_probs.reshape(batch, width, words) + state.open_score[..., None]
        # At most one candidate a beam is the end, so width of twice as many go on.
        score, flat = jax.lax.top_k(totals.reshape(batch, width * words), 2 * width)
        beam, token = flat // words, flat % words
        tokens = jax.lax.dynamic_update_slice(_rows(state.open, beam), token[..., None],
                                              (0, 0, state.length))
        done = (token == end) | (state.length + 1 >= length)

        open_score, chosen = jax.lax.top_k(jnp.where(done, score + _NEVER, score), width)
        first = jnp.arange(batch)[:, None] * width
        source = (first + jnp.take_along_axis(beam, chosen, axis=1)).reshape(-1)

        new = (state.length + 1 - prompted).astype(jnp.float32) ** length_penalty
        keep = done & (jnp.arange(2 * width) < width) & state.improvable
        scores = jnp.concatenate([state.kept_score, jnp.where(keep, score / new, _NEVER)], axis=1)
        kept_score, best = jax.lax.top_k(scores, width)
        kept_done = jnp.take_along_axis(jnp.concatenate([state.kept_done, keep], axis=1), best,
                                        axis=1)
        worst = jnp.where(kept_done, kept_score[:, -1:], _NEVER)
        improvable = state.improvable & jnp.any(open_score[:, :1] / new > worst, axis=1,
                                                keepdims=True)
        return _State(
            length=state.length + 1,
            open=_rows(tokens, chosen), open_score=open_score,
            kept=_rows(jnp.concatenate([state.kept, tokens], axis=1), best),
            kept_score=kept_score, kept_done=kept_done, improvable=improvable,
            going=jnp.any(improvable) & ~jnp.all(done),
            cache=jax.tree.map(lambda a: a[source], state.cache))

    def advance(state: _State) -> _State:
        token = jax.lax.dynamic_index_in_dim(state.open, state.length - 1, axis=2, keepdims=False)
        logits, cache = step(token.reshape(-1), state.length - 1, state.cache)
        return choose(state._replace(cache=cache), logits)

    rest = jnp.full((batch, length - prompted), end, jnp.int32)
    blank = jnp.repeat(jnp.concatenate([prompt, rest], axis=1)[:, None], width, axis=1)
    start = _State(
        length=jnp.int32(prompted), open=blank, kept=blank,
        # The beams are equal at first, so all but one of them are out of the choice.
        open_score=jnp.tile(jnp.where(jnp.arange(width) == 0, 0.0, _NEVER), (batch, 1)),
        kept_score=jnp.full((batch, width), _NEVER),
        kept_done=jnp.zeros((batch, width), bool),
        improvable=jnp.ones((batch, 1), bool), going=jnp.bool_(True),
        cache=jax.tree.map(lambda a: jnp.repeat(a, width, axis=0), cache))
    last = jax.lax.while_loop(lambda state: state.going, advance,
                              choose(start, jnp.repeat(logits, width, axis=0)))
    return last.kept[:, 0], last.kept_score[:, 0]


def _rows(table: jax.Array, index: jax.Array) -> jax.Array:
    """``out[b, i] = table[b, index[b, i]]``; table: [B, N, L], index: i32[B, K]."""
    return jnp.take_along_axis(table, index[..., None], axis=1)
