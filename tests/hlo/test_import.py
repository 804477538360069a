"""The StableHLO importer on real JAX programs and on hand-written modules."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hlo_programs import X, lower, programs
from jax import lax
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from jaxmono.hlo import ops
from jaxmono.hlo.fingerprint import fingerprint
from jaxmono.hlo.importer import import_function, import_module, module_functions
from jaxmono.hlo.ir import Graph, Op
from jaxmono.hlo.print import to_text
from jaxmono.hlo.types import DType
from jaxmono.hlo.verify import verify

PROGRAMS = programs()


def graph_of(fun, *args) -> Graph:
    return import_module(lower(fun, *args)).graph


def kinds(graph: Graph) -> list[str]:
    return [o.kind if isinstance(o, ops.Elementwise) else o.opcode for o in graph.walk()]


def one(graph: Graph, cls: type[Op]) -> Op:
    found = [o for o in graph.walk() if isinstance(o, cls)]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_imports_and_verifies(name):
    fun, args = PROGRAMS[name]
    imported = import_module(lower(fun, *args))
    verify(imported.graph)
    assert len(imported.origins) == len(imported.graph.ops)
    leaves = jax.tree.leaves(jax.eval_shape(fun, *args))
    assert [v.type.shape for v in imported.graph.outputs][-len(leaves):] == [
        tuple(x.shape) + ((2,) if name == "random" and x.ndim and x.dtype.name == "key<fry>"
                          else ()) for x in leaves]
    unknown = {o.name for o in imported.graph.walk() if isinstance(o, ops.Unknown)}
    assert unknown == {"unnamed_op": {"stablehlo.rng"}, "unnamed_type": {"stablehlo.convert"},
                       "callback": {"stablehlo.custom_call"}}.get(name, set())


@pytest.mark.parametrize("name", PROGRAMS)
def test_origins_rebuild_the_function(name):
    """Cloning every origin in order gives a function that imports to the same program."""
    fun, args = PROGRAMS[name]
    module = lower(fun, *args)
    imported = import_module(module)
    main = module_functions(module)["main"].regions[0].blocks[0]
    returns = list(main.operations)[-1]
    with module.context, ir.Location.unknown():
        types = [v.type for v in main.arguments], [v.type for v in returns.operands]
        again = func.FuncOp("again", types, ip=ir.InsertionPoint(module.body))
        block = again.add_entry_block()
        values = dict(zip(imported.graph.inputs, block.arguments, strict=True))
        for origin, op in zip(imported.origins, imported.graph.ops, strict=True):
            new = origin.clone(values, ir.InsertionPoint(block))
            values.update(zip(op.results, new.results, strict=True))
        with ir.InsertionPoint(block):
            func.ReturnOp([values[v] for v in imported.graph.outputs])
        assert module.operation.verify()
    rebuilt = import_function(again, module).graph
    assert fingerprint(rebuilt) == fingerprint(imported.graph)


def test_constants_are_exact():
    graph = graph_of(PROGRAMS["constants"][0])
    wanted = [np.asarray(x) for x in jax.jit(PROGRAMS["constants"][0])()]
    for v, w in zip(graph.outputs, wanted, strict=True):
        producer = graph.producer[v]
        if isinstance(producer, ops.BroadcastInDim):
            producer = graph.producer[producer.operand]
        assert isinstance(producer, ops.Constant)
        assert producer.value.dtype == w.dtype
        got = np.broadcast_to(producer.value, w.shape)
        assert np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(w).tobytes()


def module_of(text: str) -> Graph:
    """Imports a hand-written module, in a context that knows JAX's dialects."""
    with lower(lambda x: x, X).context:
        return import_module(ir.Module.parse(text)).graph


@pytest.mark.parametrize(("literal", "element", "wanted"), [
    ("0x7FC1", "bf16", np.array(0x7FC1, np.uint16).view(ml_dtypes.bfloat16)),
    ("0x7FC00001", "f32", np.array(0x7FC00001, np.uint32).view(np.float32)),
    ("-0.0", "bf16", np.array(-0.0, ml_dtypes.bfloat16)),
    ("0xFF80", "bf16", np.array(-np.inf, ml_dtypes.bfloat16)),
    ("(1.0, 0x7FC00000)", "complex<f32>", np.array(complex(1, np.nan), np.complex64)),
    ("18446744073709551615", "ui64", np.array(2**64 - 1, np.uint64)),
    ("-8", "i4", np.array(-8, ml_dtypes.int4)),
    ("true", "i1", np.array(True)),
])
def test_scalar_literals_keep_their_bits(literal, element, wanted):
    graph = module_of(f"""func.func public @main() -> tensor<{element}> {{
      %0 = stablehlo.constant dense<{literal}> : tensor<{element}>
      return %0 : tensor<{element}> }}""")
    value = graph.ops[0].value
    assert value.dtype == wanted.dtype
    assert value.tobytes() == wanted.tobytes()


def test_splat_costs_no_memory():
    graph = module_of("""func.func public @main() -> (tensor<1000x1000xf32>, tensor<9x9xbf16>) {
      %0 = stablehlo.constant dense<1.5> : tensor<1000x1000xf32>
      %1 = stablehlo.constant dense<2.5> : tensor<9x9xbf16>
      return %0, %1 : tensor<1000x1000xf32>, tensor<9x9xbf16> }""")
    for op, value in zip(graph.ops, (1.5, 2.5), strict=True):
        assert op.value.strides == (0, 0)
        assert (op.value == value).all()


def test_if_is_a_case_with_the_false_branch_first():
    graph = module_of("""func.func public @main(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32> {
      %0 = "stablehlo.if"(%p) ({
        %1 = stablehlo.negate %x : tensor<f32>
        stablehlo.return %1 : tensor<f32>
      }, { stablehlo.return %x : tensor<f32> }) : (tensor<i1>) -> tensor<f32>
      return %0 : tensor<f32> }""")
    verify(graph)
    on_false, on_true = one(graph, ops.Case).branches
    assert not on_false.ops
    assert kinds(on_true) == ["negate"]
    assert on_true.captures == (graph.inputs[1],)


def test_top_k_composite_stays_one_op():
    graph = module_of("""module {
      func.func public @main(%x: tensor<4x8xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>) {
        %0:2 = stablehlo.composite "chlo.top_k" %x {composite_attributes = {k = 2 : i64},
          decomposition = @impl} : (tensor<4x8xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>)
        return %0#0, %0#1 : tensor<4x2xf32>, tensor<4x2xi32>
      }
      func.func private @impl(%x: tensor<4x8xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>) {
        %0:2 = chlo.top_k(%x, k = 2) : tensor<4x8xf32> -> (tensor<4x2xf32>, tensor<4x2xi32>)
        return %0#0, %0#1 : tensor<4x2xf32>, tensor<4x2xi32>
      } }""")
    verify(graph)
    assert kinds(graph) == ["top_k"]
    assert graph.ops[0].k == 2


def test_calls_are_inlined_with_values_of_their_own():
    graph = graph_of(PROGRAMS["calls"][0], X)
    assert kinds(graph).count("select") == 3
    results = [v for o in graph.ops for v in o.results]
    assert len(results) == len(set(results))


def test_calls_inside_regions_are_inlined():
    branch = one(graph_of(PROGRAMS["cond"][0], X), ops.Case).branches
    assert any("select" in kinds(g) for g in branch)


def test_sharding_is_an_identity():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    graph = graph_of(lambda x: -lax.with_sharding_constraint(x, sharding), X)
    assert kinds(graph) == ["negate"]


def test_attributes_of_contractions():
    graph = graph_of(lambda a, w: lax.conv_general_dilated(
        a, w, (2, 1), ((1, 1), (0, 2)), (1, 2), (2, 1), ("NHWC", "HWIO", "NCHW")),
        np.ones((2, 8, 8, 2), np.float32), np.ones((3, 3, 2, 4), np.float32))
    conv = one(graph, ops.Convolution)
    assert conv.window_strides == (2, 1)
    assert conv.padding == ((1, 1), (0, 2))
    assert (conv.lhs_dilation, conv.rhs_dilation) == ((1, 2), (2, 1))
    assert (conv.input_batch, conv.input_spatial, conv.input_feature) == (0, (1, 2), 3)
    assert (conv.kernel_spatial, conv.kernel_input_feature) == ((0, 1), 2)
    assert (conv.output_feature, conv.output_spatial) == (1, (2, 3))
    dots = [o for o in graph_of(PROGRAMS["matmul"][0], X).ops if isinstance(o, ops.DotGeneral)]
    assert dots[2].precision == ("HIGHEST", "HIGHEST")
    assert "bf16" in dots[3].algorithm
    assert dots[0].algorithm == ""


def test_batching_dims_of_gather_and_scatter():
    graph = graph_of(lambda x, i: (jax.vmap(lambda a, j: a[j])(x, i),
                                   jax.vmap(lambda a, j: a.at[j].add(1.0))(x, i)),
                     X, np.zeros((4, 3), np.int32))
    assert one(graph, ops.Gather).operand_batching_dims == (0,)
    assert one(graph, ops.Gather).start_indices_batching_dims == (0,)
    assert one(graph, ops.Scatter).input_batching_dims == (0,)


def test_accuracy_is_kept():
    graph = graph_of(lambda x: (lax.exp(x), lax.exp(x, accuracy=lax.AccuracyMode.HIGHEST)), X)
    assert [bool(graph.producer[v].accuracy) for v in graph.outputs] == [False, True]


def test_comparison_of_total_order_and_integers():
    graph = graph_of(lambda x: jnp.sort(x), X)
    assert "TOTALORDER" in {o.compare_type for o in graph.walk() if isinstance(o, ops.Compare)}
    graph = graph_of(lambda x: x > 3, np.ones(3, np.uint8))
    assert one(graph, ops.Compare).compare_type == "UNSIGNED"


def test_unknown_ops_carry_operands_text_and_captures():
    graph = module_of("""func.func public @main(%x: tensor<4xf32>, %y: tensor<f32>)
        -> tensor<4xf32> {
      %0 = "stablehlo.map"(%x) <{dimensions = array<i64: 0>}> ({
      ^bb0(%a: tensor<f32>):
        %1 = stablehlo.add %a, %y : tensor<f32>
        stablehlo.return %1 : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32> }""")
    op = one(graph, ops.Unknown)
    assert op.name == "stablehlo.map"
    assert op.args == graph.inputs
    assert "stablehlo.add" in op.text
    assert "loc(" not in op.text


def test_tokens_are_opaque():
    graph = graph_of(PROGRAMS["callback"][0], X)
    call = one(graph, ops.Unknown)
    assert DType.OPAQUE in {v.type.dtype for v in (*call.args, *call.results)}
    assert ops.has_side_effect(call)


def test_source_lines_are_the_users():
    line = inspect.currentframe().f_lineno + 1
    graph = graph_of(lambda x: jnp.where(x > 0, jax.nn.softmax(x), 0.0), X)
    for op in graph.ops:
        if not isinstance(op, ops.Constant):
            assert (op.loc.file, op.loc.line) == (__file__, line), to_text(graph)
    assert graph.producer[graph.outputs[0]].loc.name.endswith("jit(_where)/select_n")


def test_source_lines_skip_flax():
    graph = graph_of(PROGRAMS["block_f32"][0], *PROGRAMS["block_f32"][1])
    files = {o.loc.file.rsplit("/", 1)[-1] for o in graph.ops}
    assert files == {"hlo_programs.py"}


def test_input_hints_are_argument_names():
    graph = graph_of(lambda weights, x: weights["w"] @ x, {"w": X}, X.T)
    assert [v.hint for v in graph.inputs] == ["weights['w']", "x"]


def test_a_missing_function_is_named():
    with pytest.raises(KeyError, match=r"no function 'other'.*main"):
        import_module(lower(lambda x: x, X), "other")
