"""`jaxmono.jit` behaves as `jax.jit`: keywords, calls, metadata, caching, designed errors."""

from __future__ import annotations

import functools
import gc
import inspect
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono


def affine(x: Any, w: Any, n: int = 2) -> Any:
    """Doc of affine."""
    return x * n + w


@pytest.fixture
def x() -> jax.Array:
    return jnp.arange(6.0).reshape(2, 3)


def test_call_decorator_and_decorator_with_keywords(x: jax.Array) -> None:
    expected = jax.jit(affine)(x, x)

    @jaxmono.jit
    def bare(x: Any, w: Any) -> Any:
        return affine(x, w)

    @jaxmono.jit(mode="monolithic")
    def keyed(x: Any, w: Any) -> Any:
        return affine(x, w)

    for f in (jaxmono.jit(affine), bare, keyed, jaxmono.jit()(affine)):
        np.testing.assert_array_equal(f(x, x), expected)


def test_metadata_and_signature() -> None:
    f = jaxmono.jit(affine)
    assert f.__wrapped__ is affine
    assert f.__name__ == "affine" and f.__doc__ == "Doc of affine."
    assert f.__module__ == affine.__module__
    assert inspect.signature(f) == inspect.signature(affine)


def test_static_arguments_by_number_and_name(x: jax.Array) -> None:
    seen: list[Any] = []

    def f(x: Any, how: Any, *, extra: Any = None) -> Any:
        seen.append((how, extra))
        return {"times": x * how[0], "extra": x + (extra or 0)}

    static = ("a tuple", 3)
    g = jaxmono.jit(f, static_argnums=1, static_argnames="extra")
    np.testing.assert_array_equal(g(x, (3, static), extra=5)["times"], x * 3)
    np.testing.assert_array_equal(g(x, (3, static), extra=5)["extra"], x + 5)
    assert seen == [((3, static), 5)], "static values reach fun as they are, and trace once"
    g(x, (4, static), extra=5)
    assert len(seen) == 2


def test_a_static_pytree_keeps_its_identity(x: jax.Array) -> None:
    marker = (1, 2)

    def f(x: Any, static: Any) -> Any:
        assert static is marker
        return x * static[0]

    jaxmono.jit(f, static_argnums=1)(x, marker)


def test_pytrees_none_and_empty_containers(x: jax.Array) -> None:
    def f(tree: Any, nothing: Any, *rest: Any, **named: Any) -> Any:
        assert nothing is None
        return {"a": tree["a"][0] + 1, "n": None, "e": (), "r": rest, "k": named["k"]}

    tree = {"a": [x, (x, None)], "b": {}}
    got = jaxmono.jit(f)(tree, None, x, {}, k=x)
    want = jax.jit(f)(tree, None, x, {}, k=x)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_python_scalars_numpy_and_weak_types(x: jax.Array) -> None:
    def f(a: Any, b: Any) -> Any:
        return a * 2, b + 1, 3, np.float32(2), np.arange(3), True

    got = jaxmono.jit(f)(1, np.ones((2,), np.int8))
    want = jax.jit(f)(1, np.ones((2,), np.int8))
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype and g.weak_type == w.weak_type
        np.testing.assert_array_equal(g, w)


def test_closed_over_arrays_and_tracers(x: jax.Array) -> None:
    w = jnp.ones((3, 2))

    def outer(x: Any) -> Any:
        inner = jaxmono.jit(lambda y: (y * x) @ w)
        return inner(x + 1).sum()

    np.testing.assert_allclose(jax.jit(outer)(x), outer(x))
    np.testing.assert_allclose(jax.grad(outer)(x), jax.grad(
        lambda x: (((x + 1) * x) @ w).sum())(x))


def test_no_arguments_and_no_outputs() -> None:
    np.testing.assert_array_equal(jaxmono.jit(lambda: jnp.arange(3) * 2)(), [0, 2, 4])
    assert jaxmono.jit(lambda x: None)(1.0) is None


def test_outputs_that_are_inputs_or_repeated(x: jax.Array) -> None:
    got = jaxmono.jit(lambda a, b: (b, a, a, a + 1))(x, 2.0)
    np.testing.assert_array_equal(got[1], x)
    np.testing.assert_array_equal(got[2], x)
    assert float(got[0]) == 2.0


def test_donation_deletes_the_argument(x: jax.Array) -> None:
    f = jaxmono.jit(lambda a, b: a.at[0].set(b), donate_argnums=0)
    a = x + 0
    got = f(a, 7.0)
    np.testing.assert_array_equal(got[0], [7.0, 7.0, 7.0])
    assert a.is_deleted()


def test_every_keyword_of_jax_jit_is_accepted(x: jax.Array) -> None:
    device = jax.devices()[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    for kw in ({"keep_unused": True}, {"inline": True}, {"backend": device.platform},
               {"device": device}, {"in_shardings": sharding, "out_shardings": sharding},
               {"compiler_options": {}}, {"donate_argnames": "w"}, {"static_argnames": "n"}):
        f = jaxmono.jit(affine, **kw)
        np.testing.assert_array_equal(f(x, x + 0), affine(x, x))
    for name in inspect.signature(jax.jit).parameters:
        if name != "fun":
            default = inspect.signature(jax.jit).parameters[name].default
            jaxmono.jit(affine, **{name: default})


def test_methods_partials_and_callable_objects(x: jax.Array) -> None:
    class Model:
        scale = 3.0

        @functools.partial(jaxmono.jit, static_argnums=0)
        def decorated(self, x: Any) -> Any:
            return x * self.scale

        def plain(self, x: Any) -> Any:
            return x * self.scale

        def __call__(self, x: Any) -> Any:
            return x * self.scale

    model = Model()
    for f in (model.decorated, jaxmono.jit(model.plain), jaxmono.jit(model),
              jaxmono.jit(functools.partial(Model.plain, model))):
        np.testing.assert_array_equal(f(x), x * 3)
    trace = jaxmono.jit(model.plain).trace  # the bound method lives on in nothing but this
    gc.collect()
    assert trace(x).jaxpr is not None


def test_jit_of_the_same_function_twice_traces_once(x: jax.Array) -> None:
    traced: list[int] = []

    def f(x: Any) -> Any:
        traced.append(1)
        return x + 1

    for _ in range(3):
        jaxmono.jit(f)(x)
    assert len(traced) == 1
    jaxmono.jit(f, mode="monolithic")(x)
    assert len(traced) == 2, "other options are another program"


def test_a_function_is_not_kept_alive(x: jax.Array) -> None:
    def f(x: Any) -> Any:
        return x + 1

    jaxmono.jit(f)(x)
    ref = weakref.ref(f)
    del f
    gc.collect()
    assert ref() is None


def test_disable_jit_runs_plain_python(x: jax.Array) -> None:
    def f(x: Any) -> Any:
        assert not isinstance(x, jax.core.Tracer)
        return x + (1 if float(x[0, 0]) == 0 else 2)

    with jax.disable_jit():
        np.testing.assert_array_equal(jaxmono.jit(f)(x), x + 1)


def test_trace_eval_shape_and_clear_cache(x: jax.Array) -> None:
    f = jaxmono.jit(affine)
    out = f.eval_shape(x, x)
    assert out.shape == (2, 3) and out.dtype == jnp.float32
    assert isinstance(f.trace(x, x), jax.stages.Traced)
    f(x, x)
    f.clear_cache()
    np.testing.assert_array_equal(f(x, x), affine(x, x))


def test_lowered_and_compiled_look_like_jax_stages(x: jax.Array) -> None:
    theirs = jax.jit(affine).lower(x, w=x)
    lowered = jaxmono.jit(affine).lower(x, w=x)
    assert isinstance(lowered, jaxmono.Lowered)
    assert str(lowered.args_info) == str(theirs.args_info)
    assert jax.tree.map(lambda s: (s.shape, s.dtype), lowered.out_info) == ((2, 3), np.float32)
    assert lowered.in_tree == theirs.in_tree and lowered.out_tree == theirs.out_tree
    assert "stablehlo" in lowered.as_text() and "HloModule" in lowered.as_text("hlo")
    compiled = lowered.compile()
    assert isinstance(compiled, jaxmono.Compiled)
    np.testing.assert_array_equal(compiled(x, w=x), affine(x, x))
    assert "HloModule" in compiled.as_text()
    assert compiled.as_text("stablehlo") == lowered.as_text("stablehlo")
    assert compiled.memory_analysis() is not None
    assert isinstance(compiled.cost_analysis(), dict)
    assert compiled.input_shardings


def test_lower_after_a_call_still_knows_its_kernels(x: jax.Array) -> None:
    f = jaxmono.jit(affine)
    f(x, x)
    first, second = f.lower(x, x).explain(), f.lower(x, x).explain()
    assert first.total == second.total and first.total.ops > 0


def test_lower_takes_shape_dtype_structs() -> None:
    spec = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    compiled = jaxmono.jit(affine).lower(spec, spec).compile()
    np.testing.assert_array_equal(compiled(np.ones((4, 4), np.float32),
                                           np.ones((4, 4), np.float32)), np.full((4, 4), 3))


def test_version() -> None:
    assert jaxmono.__version__.count(".") >= 2


def test_refs_and_effects_run_through_xla(x: jax.Array, capfd: pytest.CaptureFixture[str]) -> None:
    def scratch(x: Any) -> Any:
        ref = jax.new_ref(x)
        ref[0, 0] = 5.0
        return ref[...]

    f = jaxmono.jit(scratch)
    np.testing.assert_array_equal(f(x), x.at[0, 0].set(5.0))
    assert "scratch: it uses jax.Ref" in f.explain(x).note

    def update(ref: Any, y: Any) -> Any:
        ref[...] += y
        return ref[...] * 2

    ref = jax.new_ref(x)
    np.testing.assert_array_equal(jaxmono.jit(update)(ref, x), x * 4)
    np.testing.assert_array_equal(ref[...], x * 2)

    def says(x: Any) -> None:
        jax.debug.print("sum {}", x.sum())

    jaxmono.jit(says)(x)
    jax.effects_barrier()
    assert "sum 15.0" in capfd.readouterr().out


def test_the_interpreter_keeps_subnormal_numbers_as_a_gpu_does() -> None:
    x = np.array([0.0, 6e-8, -6e-8, 1e-5], np.float16)
    got = jaxmono.jit(lambda x: x != 0, interpret=True)(x)  # XLA's threads flush them to zero
    assert np.asarray(got).tolist() == [False, True, True, True]
