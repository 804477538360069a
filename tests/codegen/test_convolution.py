"""Networks of convolutions and pools as one kernel: right, fused, and copied where they can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import dot_sigs, plan_of
from jax import lax
from thinned import thinned

import jaxmono
from jaxmono.codegen import cuda_target, generate
from jaxmono.codegen.operand import Operand, analyse
from jaxmono.fusion.cost import op_flops
from jaxmono.fusion.plan import Device, DotForm, LoopForm, Plan
from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.passes.rules import alignment

NHWC = ("NHWC", "HWIO", "NHWC")
NWC = ("NWC", "WIO", "NWC")
Spec = jax.ShapeDtypeStruct
X = Any


def conv(x: X, w: X, stride: int = 1, padding: Any = "SAME", **kw: Any) -> X:
    return lax.conv_general_dilated(x, w, (stride,) * (x.ndim - 2), padding,
                                    dimension_numbers=NHWC if x.ndim == 4 else NWC, **kw)


def norm(x: X, p: X) -> X:
    mean, var, scale, bias = p
    return (x - mean) * (lax.rsqrt(jnp.square(var) + 0.1) * scale) + bias


def pool(x: X, size: int = 3, stride: int = 2) -> X:
    window, step = (1, size, size, 1), (1, stride, stride, 1)
    return lax.reduce_window(x, jnp.asarray(-jnp.inf, x.dtype), lax.max, window, step, "SAME")


def residual(x: X, w1: X, p1: X, w2: X, p2: X, w3: X) -> X:
    x = pool(jax.nn.relu(norm(conv(x, w1, 2), p1)))
    y = norm(conv(jax.nn.relu(x), w2, 2), p2)
    return jax.nn.relu(y + conv(x, w3, 2, "VALID"))


def mobile(x: X, w1: X, w2: X, b: X, w3: X) -> X:
    y = jnp.clip(conv(x, w1), 0, 6)
    y = jnp.clip(conv(y, w2, feature_group_count=y.shape[-1]) + b, 0, 6)
    return x + conv(y, w3)


def grouped(x: X, w1: X, w2: X) -> X:
    x = jax.nn.relu(conv(x, w1, feature_group_count=4))
    return conv(x, w2, padding=((1, 0), (2, -1)), rhs_dilation=(2, 1))


def speech(x: X, w1: X, w2: X, w3: X) -> X:
    x = jax.nn.gelu(conv(x, w1, 5, "VALID"))
    x = jax.nn.gelu(conv(x, w2, 2, "VALID"))
    return x + jax.nn.gelu(conv(x, w3, padding=((4, 3),), feature_group_count=2))


def channels_first(x: X, w1: X, b: X, w2: X) -> X:
    x = jax.nn.relu(lax.conv_general_dilated(x, w1, (1, 1), "SAME") + b[:, None, None])
    x = lax.reduce_window(x, jnp.zeros((), x.dtype), lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return lax.conv_general_dilated(x, w2, (2, 2), ((1, 1), (1, 1)))


def decoder(x: X, w1: X, b: X, w2: X) -> X:
    x = jax.nn.relu(lax.conv_transpose(x, w1, (2, 2), "SAME", dimension_numbers=NHWC) + b)
    return jnp.tanh(conv(x, w2, rhs_dilation=(2, 2)))


def large_windows(x: X, w: X) -> X:
    y = conv(x, w, feature_group_count=x.shape[-1])
    zero = jnp.zeros((), x.dtype)
    y = y + lax.reduce_window(x, zero, lax.add, (1, 11, 11, 1), (1, 1, 1, 1), "SAME") / 121
    return lax.reduce_window(y, zero, lax.add, (1, *x.shape[1:3], 1), (1, 1, 1, 1), "VALID")


NETS: dict[str, tuple[Callable[..., Any], Sequence[tuple[int, ...]]]] = {
    "residual": (residual, [(1, 16, 16, 3), (5, 5, 3, 16), (4, 16), (3, 3, 16, 24), (4, 24),
                            (1, 1, 16, 24)]),
    "mobile": (mobile, [(2, 9, 7, 8), (1, 1, 8, 32), (3, 3, 1, 32), (32,), (1, 1, 32, 8)]),
    "grouped": (grouped, [(2, 8, 9, 32), (3, 3, 8, 32), (3, 2, 32, 16)]),
    "speech": (speech, [(2, 93, 1), (10, 1, 16), (3, 16, 16), (8, 8, 16)]),
    "channels_first": (channels_first, [(2, 16, 8, 8), (8, 16, 3, 3), (8,), (24, 8, 3, 3)]),
    "decoder": (decoder, [(1, 5, 6, 16), (4, 4, 16, 8), (8,), (3, 3, 8, 3)]),
    "large_windows": (large_windows, [(2, 12, 12, 8), (9, 9, 1, 8)]),
}


def arguments(shapes: Sequence[tuple[int, ...]], dtype: Any) -> list[jax.Array]:
    """Kernels scaled so that layers keep the size of numbers."""
    out: list[jax.Array] = []
    for i, shape in enumerate(shapes):
        x = jax.random.normal(jax.random.key(i), shape)
        out.append((x * 0.2 if i and len(shape) > 2 else x).astype(dtype))
    return out


def error(found: X, wanted: X) -> float:
    a, b = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [
    n if n in ("grouped", "channels_first") else
    pytest.param(n, marks=pytest.mark.slow) for n in NETS])
def test_a_network_is_one_kernel(name: str) -> None:
    net, shapes = NETS[name]
    wide, narrow = (arguments(shapes, t) for t in (jnp.float32, jnp.bfloat16))
    fun = jaxmono.jit(lambda a, b: (net(*a), net(*b)), interpret=True)
    compiled = fun.lower(wide, narrow).compile()
    told = compiled.explain()
    assert told.kernels == 1 and not told.refused, str(told)
    found = compiled(wide, narrow)
    with jax.default_matmul_precision("highest"):
        wanted = [jax.jit(net)(*(x.astype(jnp.float32) for x in args)) for args in (wide, narrow)]
    assert found[1].dtype == jnp.bfloat16
    assert error(found[0], wanted[0]) < 2e-3  # tf32
    assert error(found[1], wanted[1]) < 2e-2


def test_padded_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 and 46 features: both convolutions read aligned copies, in the same kernel."""
    monkeypatch.setattr(alignment, "MIN_ELEMENTS", 0)

    def net(x: X, w1: X, w2: X) -> X:
        return conv(jax.nn.relu(conv(x, w1, 2)), w2)

    args = arguments([(2, 13, 12, 3), (7, 7, 3, 46), (3, 3, 46, 16)], jnp.bfloat16)
    plan = plan_of(net, *args)
    assert all(x.param is not None for x in left_operands(plan))
    compiled = jaxmono.jit(net, interpret=True).lower(*args).compile()
    assert compiled.explain().kernels == 1
    with jax.default_matmul_precision("highest"):
        wanted = jax.jit(net)(*(x.astype(jnp.float32) for x in args))
    assert error(compiled(*args), wanted) < 2e-2


@pytest.mark.parametrize("name", thinned(["grouped", "mobile", "decoder"], 3))
def test_gradients(name: str) -> None:
    net, shapes = NETS[name]
    args = arguments(shapes, jnp.float32)
    every = tuple(range(len(args)))

    def loss(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *a: jnp.sum(jnp.sin(f(*a)))

    with jax.default_matmul_precision("highest"):
        wanted = jax.jit(jax.grad(loss(net), every))(*args)
        found = jax.grad(loss(jaxmono.jit(net, interpret=True)), every)(*args)
    for a, b in zip(found, wanted, strict=True):
        assert error(a, b) < 1e-5


# ---- how it is planned -------------------------------------------------------------------------


def left_operands(plan: Plan) -> list[Operand]:
    out: list[Operand] = []
    for s in dot_sigs(plan):
        form = s.form
        assert isinstance(form, DotForm)
        out.append(analyse(s.body, form.dot.lhs, form.lhs_index, form.m, form.k,
                           form.dot.lhs.type.dtype.itemsize, several=True))
    return out


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize(("stride", "hole"), [(1, 1), (2, 1), (1, 2)])
def test_padded_windows_are_copied(dtype: Any, stride: int, hole: int) -> None:
    plan = plan_of(lambda x, w: conv(x, w, stride, ((1, 1), (1, 1)), lhs_dilation=(hole, hole)),
                   Spec((2, 10, 10, 16), dtype), Spec((3, 3, 16, 8), dtype))
    (left,) = left_operands(plan)
    assert left.param is not None and left.k_major and left.guard.bounds


@pytest.mark.parametrize("sizes", thinned([(8, 24, 16), (8, 3, 16)]))
def test_concatenated_inputs_are_copied_from_their_buffers(sizes: tuple[int, ...]) -> None:
    def joined(x: X, w: X, *parts: X) -> X:
        branches = [jax.nn.relu(conv(x, p)) for p in parts]
        return conv(jnp.concatenate([*branches, x], -1), w, 2)

    shapes = [(2, 7, 8, sizes[-1]), (3, 3, sum(sizes), 8),
              *((3, 3, sizes[-1], n) for n in sizes[:-1])]
    args = arguments(shapes, jnp.bfloat16)
    *_, left = left_operands(plan_of(joined, *args))
    aligned = all(n % 8 == 0 for n in sizes)
    assert (left.param is not None) == aligned and len(left.others) == 2 * aligned
    found = jaxmono.jit(joined, interpret=True)(*args)
    wanted = jax.jit(joined)(*(x.astype(jnp.float32) for x in args))
    assert error(found, wanted) < 2e-2


def test_kernels_of_one_element_are_plain_products() -> None:
    bf16 = jnp.bfloat16
    for stride in (1, 2):
        plan = plan_of(lambda x, w, s=stride: conv(x, w, s, "VALID"),
                       Spec((2, 8, 8, 16), bf16), Spec((1, 1, 16, 8), bf16))
        (sig,) = plan.sigs
        kinds = {type(o) for o in sig.body.ops}
        assert kinds <= {ops.DotGeneral, ops.Reshape, ops.Slice}
        assert left_operands(plan)[0].param is not None


def test_what_is_around_a_convolution_is_fused() -> None:
    """bias, norm, relu and the shortcut are epilogues; small pools and depthwise are loops."""
    net, shapes = NETS["residual"]
    plan = plan_of(net, *(Spec(s, jnp.bfloat16) for s in shapes))
    assert all(isinstance(s.form, (DotForm, LoopForm)) for s in plan.sigs)
    assert len(dot_sigs(plan)) == 3 and len(plan.stages) <= 5


def test_a_channels_first_network_is_written_features_last() -> None:
    net, shapes = NETS["channels_first"]
    plan = plan_of(net, *(Spec(s, jnp.bfloat16) for s in shapes))
    assert len(plan.stages) == 2


def test_flops_count_no_padding_and_no_holes() -> None:
    def flops(**kw: Any) -> int:
        def fun(x: X, w: X) -> X:
            return lax.conv_general_dilated(x, w, (1, 1), ((1, 1), (0, 0)), dimension_numbers=NHWC,
                                            **kw)

        lowered = jax.jit(fun).lower(Spec((2, 4, 4, 8), jnp.float32), Spec((3, 1, 8, 5),
                                                                           jnp.float32))
        graph = import_module(lowered.compiler_ir("stablehlo")).graph
        return sum(map(op_flops, graph.ops))

    assert flops() == 2 * (2 * 5) * 8 * (2 + 3 + 3 + 2) * 4
    # of 7 rows 4 are there: three taps see them 3 + 4 + 3 times
    assert flops(lhs_dilation=(2, 1)) == 2 * (2 * 5) * 8 * (3 + 4 + 3) * 4


@pytest.mark.slow
def test_a_bottleneck_compiles_for_a_gpu_without_spills() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")

    def bottleneck(x: X, w1: X, p1: X, w2: X, p2: X, w3: X, p3: X) -> X:
        y = jax.nn.relu(norm(conv(x, w1), p1))
        y = jax.nn.relu(norm(conv(y, w2), p2))
        return jax.nn.relu(norm(conv(y, w3), p3) + x)

    shapes = [(8, 28, 28, 512), (1, 1, 512, 128), (4, 128), (3, 3, 128, 128), (4, 128),
              (1, 1, 128, 512), (4, 512)]
    plan = plan_of(bottleneck, *(Spec(s, jnp.bfloat16) for s in shapes))
    program = generate(plan, cuda_target("sm_90a"), Device(), "bottleneck")
    assert program.resources["spill_stores"] == 0
