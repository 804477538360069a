"""mono_call under JAX's transformations agrees with jax.jit, with kernels in the program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from op_by_op import OpByOp, using, wrap

ROOT = Path(__file__).parents[2]
BIAS = np.linspace(-1, 1, 4, dtype=np.float32)


@pytest.fixture
def kernels() -> Iterator[OpByOp]:
    with using(OpByOp()) as compiler:
        yield compiler


def layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w + BIAS) * 2.0


def loss(fun: Any, x: Any, w: Any) -> Any:
    return (fun(x, w) ** 2).sum()


@pytest.fixture
def xw() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return (jnp.asarray(rng.normal(size=(3, 4)), jnp.float32),
            jnp.asarray(rng.normal(size=(4, 4)), jnp.float32))


def same(got: Any, want: Any) -> None:
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), got, want)


def test_plain_call(kernels: OpByOp, xw: Any) -> None:
    same(wrap(layer)(*xw), jax.jit(layer)(*xw))
    assert kernels.kernels == 3  # add, tanh, multiply


def test_calls_are_custom_calls_of_this_module(kernels: OpByOp, xw: Any) -> None:
    text = wrap(layer).lower(*xw).as_text()
    assert text.count("stablehlo.custom_call @jaxmono_interpret") == 3
    assert "stablehlo.dot_general" in text
    assert "stablehlo.tanh" not in text


def test_jit_in_jit(kernels: OpByOp, xw: Any) -> None:
    inner = wrap(layer)

    @wrap
    def outer(x: Any, w: Any) -> Any:
        return inner(inner(x, w), w) + x

    same(outer(*xw), layer(layer(*xw), xw[1]) + xw[0])
    assert kernels.kernels == 7  # one function: the inner ones are part of it
    same(jax.jit(lambda x, w: inner(x, w) + inner(x, w))(*xw), 2 * layer(*xw))


def test_jit_of_jit_in_both_places(kernels: OpByOp, xw: Any) -> None:
    """The same jaxpr once inside another function and once by itself, in one module."""
    inner = wrap(layer)
    outer = wrap(lambda x, w: inner(x, w) + 1.0)
    same(jax.jit(lambda x, w: (outer(x, w), inner(x, w)))(*xw), (layer(*xw) + 1, layer(*xw)))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("argument", [0, 1, (0, 1)])
def test_grad(kernels: OpByOp, xw: Any, argument: Any) -> None:
    same(jax.grad(partial(loss, wrap(layer)), argument)(*xw),
         jax.grad(partial(loss, layer), argument)(*xw))
    assert kernels.kernels > 3  # the backward pass has kernels of its own


def test_value_and_grad_inside_jit(kernels: OpByOp, xw: Any) -> None:
    same(jax.jit(jax.value_and_grad(partial(loss, wrap(layer))))(*xw),
         jax.jit(jax.value_and_grad(partial(loss, layer)))(*xw))


def test_second_derivative(kernels: OpByOp, xw: Any) -> None:
    x, w = xw
    same(jax.hessian(lambda x: wrap(layer)(x, w).sum())(x[:1]),
         jax.hessian(lambda x: layer(x, w).sum())(x[:1]))


def test_jvp_and_linearize(kernels: OpByOp, xw: Any) -> None:
    tangents = jax.tree.map(jnp.ones_like, xw)
    same(jax.jvp(wrap(layer), xw, tangents), jax.jvp(layer, xw, tangents))
    out, linear = jax.linearize(wrap(layer), *xw)
    same((out, linear(*tangents)), jax.jvp(layer, xw, tangents))


def test_custom_derivative_inside(kernels: OpByOp, xw: Any) -> None:
    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return jnp.tanh(x)

    clipped.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g * 3.0,))
    mine = wrap(lambda x: clipped(x) * 2.0)
    same(jax.grad(lambda x: mine(x).sum())(xw[0]), jnp.full_like(xw[0], 6.0))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("axes", [(0, None), (None, 1), (1, 0)])
def test_vmap(kernels: OpByOp, xw: Any, axes: Any) -> None:
    args = [a if d is None else jnp.stack([a, a + 1, a * 2], d)
            for a, d in zip(xw, axes, strict=True)]
    same(jax.vmap(wrap(layer), axes)(*args), jax.vmap(layer, axes)(*args))


def test_vmap_of_grad(kernels: OpByOp, xw: Any) -> None:
    x, w = jnp.stack([xw[0], xw[0] + 1]), xw[1]
    same(jax.vmap(jax.grad(partial(loss, wrap(layer))), (0, None))(x, w),
         jax.vmap(jax.grad(partial(loss, layer)), (0, None))(x, w))


def test_scan_body(kernels: OpByOp, xw: Any) -> None:
    def run(fun: Any) -> Any:
        return jax.jit(lambda x, w: jax.lax.scan(
            lambda c, _: (fun(c, w), c.sum()), x, None, length=4))(*xw)

    mine = wrap(layer)
    same(run(mine), run(layer))
    assert "while" in jax.jit(lambda x, w: jax.lax.scan(
        lambda c, _: (mine(c, w), None), x, None, length=4)).lower(*xw).as_text()


def test_scan_and_cond_inside(kernels: OpByOp, xw: Any) -> None:
    def looped(x: Any, w: Any) -> Any:
        y, sums = jax.lax.scan(lambda c, _: (layer(c, w), c.sum()), x * 1.5, None, length=3)
        return jax.lax.cond(y.sum() > 0, lambda: y + BIAS, lambda: y - BIAS) * 0.5, sums

    same(wrap(looped)(*xw), jax.jit(looped)(*xw))
    assert kernels.kernels >= 2


def test_checkpoint(kernels: OpByOp, xw: Any) -> None:
    def twice(fun: Any, x: Any, w: Any) -> Any:
        return loss(jax.checkpoint(lambda x, w: fun(fun(x, w), w)), x, w)

    same(jax.grad(partial(twice, wrap(layer)), (0, 1))(*xw),
         jax.grad(partial(twice, layer), (0, 1))(*xw))
    remat = wrap(lambda x, w: jax.checkpoint(layer)(x, w))
    same(jax.grad(partial(loss, remat))(*xw), jax.grad(partial(loss, layer))(*xw))


def two_devices(axis: Any = AxisType.Auto) -> Any:
    return jax.make_mesh((2,), ("d",), axis_types=(axis,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("axis", [AxisType.Auto, AxisType.Explicit])
def test_shard_map_over_two_devices(kernels: OpByOp, xw: Any, axis: Any) -> None:
    mesh = two_devices(axis)
    x = jnp.concatenate([xw[0], xw[0] + 1])[:4]
    spec = PartitionSpec("d")
    if axis is AxisType.Explicit:
        x = jax.device_put(x, NamedSharding(mesh, spec))
    mapped = jax.shard_map(wrap(layer), mesh=mesh, in_specs=(spec, PartitionSpec()),
                           out_specs=spec)
    jitted = jax.jit(mapped)
    with jax.set_mesh(mesh):
        assert "jaxmono_interpret" in jitted.lower(x, xw[1]).as_text()
        out = jitted(x, xw[1])
        gradient = jax.grad(lambda x: (jitted(x, xw[1]) ** 2).sum())(x)
    assert len(out.sharding.device_set) == 2
    same(np.asarray(out), layer(np.asarray(x), xw[1]))
    same(np.asarray(gradient), jax.grad(lambda x: loss(layer, x, xw[1]))(np.asarray(x)))


def test_collective_inside_shard_map(kernels: OpByOp, xw: Any) -> None:
    mesh = two_devices()
    x = jnp.concatenate([xw[0], xw[0] + 1])[:4]
    summed = wrap(lambda x: jax.lax.psum(jnp.tanh(x), "d") * 2.0)
    mapped = jax.shard_map(summed, mesh=mesh, in_specs=PartitionSpec("d"),
                           out_specs=PartitionSpec())
    same(jax.jit(mapped)(x), (jnp.tanh(x[:2]) + jnp.tanh(x[2:])) * 2)


def test_automatic_partitioning_stays_with_xla(kernels: OpByOp, xw: Any) -> None:
    mesh = two_devices()
    x = jnp.concatenate([xw[0], xw[0]])[:4]
    x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("d")))
    same(wrap(layer)(x, jax.device_put(xw[1], NamedSharding(mesh, PartitionSpec()))),
         layer(np.asarray(x), xw[1]))
    assert kernels.kernels == 0
    assert any("2 devices" in n for n in kernels.notes)


def test_cpu_without_interpret_stays_with_xla(kernels: OpByOp, xw: Any) -> None:
    plain = wrap(layer, interpret=False)
    same(plain(*xw), layer(*xw))
    assert kernels.kernels == 0
    assert "interpret=True" in kernels.notes[0]
    assert "custom_call" not in plain.lower(*xw).as_text()


FRESH = """
import sys, numpy as np, jax, jax.export
import jaxmono.custom_call.primitive
exported = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
x, w = np.load(sys.argv[2]).values()
np.save(sys.argv[3], exported.call(x, w))
"""


def test_export_and_run_in_a_fresh_process(kernels: OpByOp, xw: Any, tmp_path: Path) -> None:
    exported = jax.export.export(wrap(layer), disabled_checks=[
        jax.export.DisabledSafetyCheck.custom_call("jaxmono_interpret")])(*xw)
    assert "jaxmono_interpret" in exported.mlir_module()
    blob, args, out = (str(tmp_path / n) for n in ("f.bin", "args.npz", "out.npy"))
    Path(blob).write_bytes(exported.serialize())
    np.savez(args, *map(np.asarray, xw))
    subprocess.run([sys.executable, "-c", FRESH, blob, args, out], check=True, cwd=tmp_path,
                   env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120)
    same(np.load(out), layer(*xw))


def test_export_for_two_platforms_has_no_kernels(kernels: OpByOp, xw: Any) -> None:
    exported = jax.export.export(wrap(layer), platforms=("cpu", "cuda"))(*xw)
    assert "@jaxmono_" not in exported.mlir_module()
    same(exported.call(*xw), layer(*xw))
    assert any("several platforms" in n for n in kernels.notes)


def test_export_with_symbolic_shape(kernels: OpByOp, xw: Any) -> None:
    """Only what has static shapes becomes kernels."""
    shape = jax.export.symbolic_shape("b, 4")
    exported = jax.export.export(wrap(layer))(
        jax.ShapeDtypeStruct(shape, np.float32), jax.ShapeDtypeStruct((4, 4), np.float32))
    same(exported.call(*xw), layer(*xw))


def test_donation(kernels: OpByOp, xw: Any) -> None:
    def update(cache: Any, x: Any) -> Any:
        return cache + x

    mine = wrap(update, donate_argnums=0)
    cache = jnp.array(xw[0])
    pointer = cache.unsafe_buffer_pointer()
    out = mine(cache, xw[0])
    assert cache.is_deleted()
    assert out.unsafe_buffer_pointer() == pointer
    same(out, 2 * xw[0])


def test_pytrees_and_static_arguments(kernels: OpByOp, xw: Any) -> None:
    def step(params: Any, x: Any, power: int) -> Any:
        return {"y": [layer(x, params["w"]) ** power, None], "n": (params["b"] + 1.0,)}

    params = {"w": xw[1], "b": xw[0]}
    mine = jax.jit(lambda p, x, n: wrap(lambda p, x: step(p, x, n))(p, x), static_argnums=2)
    same(mine(params, xw[0], 3), step(params, xw[0], 3))


def test_zero_size_arrays(kernels: OpByOp, xw: Any) -> None:
    empty = jnp.zeros((0, 4), jnp.float32)
    out = wrap(layer)(empty, xw[1])
    assert out.shape == (0, 4)


def test_no_results_and_passed_through_arguments(kernels: OpByOp, xw: Any) -> None:
    assert wrap(lambda x: ())(xw[0]) == ()
    x, w = wrap(lambda x, w: (w, x))(*xw)
    same((w, x), xw)


def test_disable_jit(kernels: OpByOp, xw: Any) -> None:
    with jax.disable_jit():
        same(wrap(layer)(*xw), layer(*xw))


def test_callbacks_and_effects_inside(kernels: OpByOp, xw: Any) -> None:
    seen: list[float] = []

    def noisy(x: Any) -> Any:
        jax.debug.callback(lambda v: seen.append(float(v)), x.sum(), ordered=True)
        return jnp.tanh(x)

    same(wrap(noisy, on_unsupported="xla")(xw[0]), jnp.tanh(xw[0]))
    jax.effects_barrier()
    assert len(seen) == 1

    def only_noise(x: Any) -> Any:
        jax.debug.callback(lambda v: seen.append(float(v)), x.sum())
        return ()

    assert wrap(only_noise, on_unsupported="xla")(xw[0]) == ()
    jax.effects_barrier()
    assert len(seen) == 2


def test_random_bits_inside(kernels: OpByOp) -> None:
    def noise(key: Any) -> Any:
        return jax.random.normal(key, (8,)) * 2.0

    key = jax.random.key(3)
    same(wrap(noise)(key), noise(key))


def test_equal_calls_share_one_function(kernels: OpByOp, xw: Any) -> None:
    mine = wrap(layer)
    jax.jit(lambda x, w: [mine(x, w), mine(x, w)])(*xw)
    assert kernels.kernels == 3


def test_many_kernels_one_after_the_other(kernels: OpByOp) -> None:
    """Loading must not confuse shared objects that come and go under one file descriptor."""
    for n in range(1, 8):
        x = jnp.arange(n, dtype=jnp.float32)
        same(wrap(lambda x: x + x)(x), 2 * x)
        same(wrap(lambda x: x * x)(x), x * x)
        jax.clear_caches()
