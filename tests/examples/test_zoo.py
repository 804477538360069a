"""Every workload at its tiny size, in the SIMT interpreter: as right as XLA, forward steps of
transformers in one kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono
from benchmarks.workloads import Program, Workload, all_workloads

WORKLOADS = all_workloads()


_ALIKE = re.compile(r"(b2b_gemm|b2b_conv|padding)_[2-9]|gemm_\d+_\d+_\d+|bert_large|t5_base_.*|"
                    r"clip(_.*)?|vit_b16|resnet18|repvgg_a0|minilm_f32|gpt2_(decode|beam)|bert_base|"
                    r"llama_(decode|prefill)|asr_encoder|opt_.*|gptj_decode|vgg16|t5_small_encoder|wav2vec2|inception_v3|minilm|"
                    r"mixer_b16|resnet50|convnext_t|mobilenet_v2")
"""At their tiny sizes they hardly differ from the first row, or from the model that is run (VGG
from RepVGGAug, other decoders' steps from T5's), or another test has it: test_one_kernel.py BERT,
and so CLIP's towers and MiniLM, and OPT; test_convolution.py ResNet's blocks; test_mixer.py the
Mixer; test_stencil_rows.py and test_stencil_loop.py the windows of ConvNeXt and MobileNetV2. The
ASR encoder and wav2vec2 are attention and convolutions, as others are, and the longest."""


def _cases(of: Callable[[Workload], bool] = lambda w: True) -> list[Any]:
    return [pytest.param(w, id=name, marks=[pytest.mark.slow] if w.slow or _ALIKE.fullmatch(name)
                         else []) for name, w in WORKLOADS.items() if of(w)]


def _arguments(program: Program) -> tuple[Any, Any, tuple[jax.Array, ...]]:
    key = jax.random.key(3)
    return program.state(), program.carry(key), program.inputs(key)


def _f32(tree: Any) -> Any:
    return jax.tree.map(lambda a: a.astype(jnp.float32)
                        if jnp.issubdtype(a.dtype, jnp.floating) else a, tree)


def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def _errors(got: Any, want: Any) -> list[float]:
    """Relative error (norm over norm) of every float leaf; integers have to be equal."""
    out: list[float] = []
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if not jnp.issubdtype(a.dtype, jnp.floating):
            np.testing.assert_array_equal(a, b)
            continue
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert x.shape == y.shape and np.isfinite(x).all()
        out.append(float(np.linalg.norm(x - y) / max(np.linalg.norm(y), 1e-30)))
    return out


@pytest.mark.sampled(97)
@pytest.mark.parametrize("workload", _cases())
def test_a_tiny_model_is_as_right_as_under_xla(workload: Workload) -> None:
    program = workload.program(tiny=True, batch=2 if workload.batches[-1] > 1 else 1)
    state, carry, inputs = _arguments(program)
    compiled = jaxmono.jit(program.step, donate_argnums=1, interpret=True).lower(
        state, carry, *inputs).compile()
    told = compiled.explain()
    assert not told.note, str(told)
    assert all(r.reason for r in told.refused)
    if workload.one_kernel:
        assert told.kernels == 1 and not told.refused, str(told)
        assert told.coverage.flops == 1
    ours = compiled(state, _copied(carry), *inputs)
    xla = jax.jit(program.step)(state, carry, *inputs)
    wide = workload.program(tiny=True, dtype="f32", batch=2 if workload.batches[-1] > 1 else 1)
    with jax.default_matmul_precision("highest"):
        exact = jax.jit(wide.step)(_f32(state), _f32(carry), *_f32(inputs))
    bars = [1.5 * e + 2e-3 for e in _errors(xla, exact)]  # 2e-3: tf32, which XLA:CPU does not use
    assert all(e <= bar for e, bar in zip(_errors(ours, exact), bars, strict=True)), \
        list(zip(_errors(ours, exact), bars, strict=True))


@pytest.mark.parametrize("workload", _cases(
    lambda w: w.family != "micro" and len(w.batches) > 1))
def test_weights_do_not_depend_on_the_batch(workload: Workload) -> None:
    """The yardstick makes a model's once for all batches."""
    one, two = (workload.program(tiny=True, batch=batch) for batch in (1, 2))
    first = jax.eval_shape(one.state)
    for state in (jax.eval_shape(two.state), one.abstract()[0]):
        assert jax.tree.structure(first) == jax.tree.structure(state)
        assert all(a.shape == b.shape and a.dtype == b.dtype and a.weak_type == b.weak_type
                   for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(state), strict=True))


def test_names_are_flag_values() -> None:
    assert all(name == name.lower() and "," not in name and " " not in name for name in WORKLOADS)
