"""Every misuse has a message that names the argument, the value and the next step; every failure
behind the API is one warning line and XLA's result."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxmono


def f(x: Any) -> Any:
    return x + 1


@pytest.mark.parametrize(("kw", "error", "says"), [
    ({"mode": "auot"}, ValueError, ["mode='auot'", "'monolithic'", "Did you mean 'auto'?"]),
    ({"mode": 3}, TypeError, ["mode must be a string", "3"]),
    ({"mode": "stitch"}, NotImplementedError, ["mode='stitch'", "'auto' or 'monolithic'"]),
    ({"mode": "layer"}, NotImplementedError, ["mode='layer'", "'auto' or 'monolithic'"]),
    ({"mode": "elementwise"}, NotImplementedError, ["'auto' or 'monolithic'"]),
    ({"on_unsupported": "raise"}, ValueError, ["on_unsupported='raise'", "'xla' or 'error'"]),
    ({"on_unsupported": None}, TypeError, ["on_unsupported must be a string", "None"]),
    ({"interpret": "yes"}, TypeError, ["interpret must be True or False", "'yes'"]),
    ({"interpret": 1}, TypeError, ["interpret must be True or False", "1"]),
    ({"static_argnum": 0}, TypeError, ["'static_argnum'", "Did you mean 'static_argnums'"]),
    ({"interpet": True}, TypeError, ["'interpet'", "'interpret'"]),
    ({"wibble": 0}, TypeError, ["'wibble'", "mode, on_unsupported, interpret", "donate_argnums"]),
])
def test_keywords(kw: dict[str, Any], error: type[Exception], says: list[str]) -> None:
    for call in (lambda: jaxmono.jit(f, **kw), lambda: jaxmono.jit(**kw),
                 lambda: jaxmono.explain(f, **kw)):
        with pytest.raises(error) as info:
            call()
        assert str(info.value).startswith("jaxmono.jit: ")
        for part in says:
            assert part in str(info.value)


def test_not_callable() -> None:
    with pytest.raises(TypeError, match=r"must be callable, not 3 of type int"):
        jaxmono.jit(3)  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(TypeError, match=r"not the string 'auto'; options are keywords"):
        jaxmono.jit("auto")  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(TypeError, match="must be callable"):
        jaxmono.explain([f])  # pyright: ignore[reportArgumentType]


def test_generators_and_coroutines() -> None:
    def generator(x: Any) -> Any:
        yield x

    async def coroutine(x: Any) -> Any:
        return x

    for fun in (generator, coroutine):
        with pytest.raises(TypeError, match=f"{fun.__name__} is a generator or coroutine"):
            jaxmono.jit(fun)


def test_an_output_that_is_no_array_names_its_place() -> None:
    with pytest.raises(TypeError) as info:
        jaxmono.jit(lambda x: {"a": x, "b": [x, "text"]})(1.0)
    message = str(info.value)
    assert "str ('text') at ['b'][1]" in message and "outputs must be arrays" in message


def test_arguments_fail_as_under_jax_jit() -> None:
    cases: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (lambda x, s: x, (1.0, "text"), {}),
        (lambda x, s: x, (1.0, [1]), {"static_argnums": 1}),
        (lambda x: x, (1.0,), {"donate_argnums": 5}),
        (lambda x: bool(x > 0) and x, (1.0,), {}),
    ]
    for fun, args, kw in cases:
        with pytest.raises(Exception) as theirs:
            jax.jit(fun, **kw)(*args)
        with pytest.raises(type(theirs.value)):
            jaxmono.jit(fun, **kw)(*args)


def test_explain_of_a_jitted_function_refuses_new_keywords() -> None:
    g = jaxmono.jit(f)
    assert jaxmono.explain(g)(jnp.ones(3)).total.ops > 0
    with pytest.raises(TypeError, match=r"\['mode'\] have no effect"):
        jaxmono.explain(g, mode="auto")


def test_unknown_dialects_of_both_stages() -> None:
    lowered = jaxmono.jit(f).lower(1.0)
    for stage in (lowered, lowered.compile()):
        with pytest.raises(ValueError, match=r"dialect='cudaa' .*Did you mean 'cuda'\?"):
            stage.as_text("cudaa")
        with pytest.raises(ValueError, match="dialect=3"):
            stage.as_text(3)  # pyright: ignore[reportArgumentType]
