"""The text of a dot Sig's device functions in the gemv family (device/gemv.cuh): a few rows.

    NAME_prefetch   before the grid barrier: the first steps of the task's weights
    NAME            x into shared memory, the stream of weights, epilogue

Weights may be bytes in memory (`Operand.stored`), of which a piece has 16, or f32 beside 16 bits.

Where x is the result of a stage without a barrier behind it (`fusion.flags`), all that a thread
needs of it is asked for at once, and again until it is there.

A task is a tile of columns with a share of k; its x is an expression of the Sig's body, computed
once a task, and a normalisation of whole rows where there is a row prologue.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from jaxmono.codegen.asked import Together
from jaxmono.codegen.dot import DotCode, emit_epilogue, epilogue_lanes, row_demands, store_offset
from jaxmono.codegen.dot_gemv_shape import SCRATCH, Shape
from jaxmono.codegen.emit import BodyEmitter, Emitted, Load, c_type, vector_width
from jaxmono.codegen.group_scales import emit_address, extent_of, scale_of, width_of
from jaxmono.codegen.landed import emit_landed
from jaxmono.codegen.loaders import emit_loader, lane_of
from jaxmono.codegen.names import compute, stored_type, vector
from jaxmono.codegen.parted import meet
from jaxmono.codegen.row_chain import RowOutput, emit_row_chain
from jaxmono.codegen.small_inputs import touch
from jaxmono.codegen.team import block_team, warp_team
from jaxmono.codegen.traverse import Access, Lane, access, dynamics, sources, walk
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, IndexMap, Var, linearize
from jaxmono.fusion.plan import Store
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value

_HELD_PIECES = {4: 4, 8: 8}
_MOST_HELD = 24
"""Of 16 bytes of weights, that a thread keeps in registers until x comes: those of few bits, which
it has to convert, and others."""


def shape(code: DotCode, threads: int) -> Shape:
    assert code.element is not None and code.rhs_element is not None
    f = code.form
    return Shape(code.s, m=f.m.size, n=f.n.size, k=f.k.size, bits=code.rhs_element.bits,
                 k_major=code.rhs.k_major, threads=threads, x_itemsize=code.element.itemsize,
                 scales=extent_of(code))


def is_whole(code: DotCode, threads: int) -> bool:
    """Whether a task's ring holds all of its weights."""
    return shape(code, threads).steps <= code.s.stages


def holds(code: DotCode, threads: int) -> bool:
    """``Gemv::HOLDS``."""
    assert code.rhs_element is not None
    of = shape(code, threads)
    most = _HELD_PIECES.get(code.rhs_element.bits, _MOST_HELD)
    return not (code.rhs.scaled or code.rhs.k_major or of.mma) and of.steps * of.u <= most


def can_flag(code: DotCode, param: Value) -> bool:
    """Whether a body input may have flags: those that weights come from are copied, and x must
    come in whole pieces, which are asked for together."""
    body, x = code.sig.body, code.lhs
    if param in sources(body, code.rhs.value):
        return False
    return code.form.row_prologue or param not in sources(body, x.value) \
        or _whole_pieces(code, param)


def _whole_pieces(code: DotCode, param: Value) -> bool:
    """Whether 16 bytes of x are computed from vectors of as many elements, at places that no memory
    tells, and from the same ones everywhere: what a pad puts in place of an element lies outside of
    the buffer, and nobody ever writes what would be waited for there. An element of ``param`` for
    all of a piece (a head's, say) would not be asked for with the others, but waited for by each
    lane alone, in front of a barrier of the block: a kernel hung so on an H200
    (`wait_together`)."""
    body, x, k = code.sig.body, code.lhs, code.form.k
    assert code.element is not None
    piece = 16 // code.element.itemsize
    nodes, lane = list(walk(body, [(x.value, x.index)])), Lane(k, piece)
    return k.size % piece == 0 and not any(
        n.guards or dynamics(n.index) or (
            n.value is param and access(lane.split(linearize(n.index, param.type.dims)), lane)
            is not Access.CONTIGUOUS) for n in nodes) and \
        vector_width(body, [(x.value, x.index)], [], k, limit=piece) == piece


# ---- text --------------------------------------------------------------------------------------


def emit_prefetch(w: Writer, code: DotCode, *, pointers: Mapping[Value, str],
                  read_only: Sequence[Value], threads: int, doubled: bool = False) -> bool:
    """Requests the first steps of a task's weights and touches its small inputs; False if it may
    not. Runs between the halves of the grid barrier before the dot's stage."""
    body, rhs = code.sig.body, code.rhs
    scale = scale_of(code)
    copied = [rhs.param, *([scale.view.param] if scale is not None else [])]
    if not set(copied) <= set(read_only) or rhs.offset is None or not rhs.offset.is_static \
            or rhs.others:
        return False
    _begin(w, code, threads)
    _emit_load_b(w, code, pointers, read_only, threads)
    w.line(f"{_emit_scales(w, code, pointers, threads)}"
           f"G::{'request' if doubled else 'prologue'}(smem, n0, k0, ks, load_b);")
    touch(w, [v for v in body.inputs if v is not rhs.param], pointers, read_only)
    return True


def emit_body(w: Writer, code: DotCode, *, pointers: Mapping[Value, str], outputs: Sequence[str],
              read_only: Sequence[Value], threads: int, mail: str = "",
              fetched: str = "false", doubled: bool = False,
              flagged: Collection[Value] = ()) -> None:
    """The statements of one task; C variables in scope: ``int task``, ``unsigned char* smem``.

    The arguments are those of `dot_function.emit_body`. doubled, flagged: those of `Function`.
    """
    form, s, body = code.form, code.s, code.sig.body
    names: dict[Var, str] = {form.batch: "b"}
    _begin(w, code, threads)
    _emit_load_b(w, code, pointers, read_only, threads)
    scales = _emit_scales(w, code, pointers, threads)
    w.line("syncthreads();  // the previous task is done with shared memory")
    held = doubled and holds(code, threads)

    def begin() -> None:
        """What is done before the threads wait for x."""
        unless = "" if fetched == "false" else f"if (!{fetched}) "
        if not doubled:
            w.line(f"{unless}{{ {scales}G::prologue(smem, n0, k0, ks, load_b); }}" if scales else
                   f"{unless}G::prologue(smem, n0, k0, ks, load_b);")
            return
        w.line(f"{unless}{{ {scales}G::request(smem, n0, k0, ks, load_b); cp_async_commit(); }}")
        if held:
            emit_landed(w, fetched)
            w.line("held = G::Held(smem);")

    stores = form.elements
    lanes = epilogue_lanes(body, stores, form.n, rows=s.bm, cols=s.bn, threads=threads)
    once = s.bm * s.bn // lanes <= threads
    epilogue = _Epilogue(code, stores, lanes, pointers, outputs, read_only, names, flagged)
    if held:
        w.line("G::Held held;")
        if once:  # behind x there is less time than a load takes
            epilogue.begin(w)
    if form.row_prologue:
        begin()
        _emit_rows(w, code, pointers, outputs, read_only, names, threads, flagged)
    else:
        if sources(body, code.lhs.value).isdisjoint(flagged):
            _emit_x(w, code, pointers, read_only, names)
            head = "G::stage_x(smem, k0, ks, x_piece, [&]"
        else:
            _emit_flagged_x(w, code, pointers, read_only, names, flagged)
            head = "G::template stage_flagged<XWords>(smem, k0, ks, ask_x, early_x, x_there, " \
                "x_piece, [&]"
        with w.block(head, "});"):
            begin()
    if once and not held:
        epilogue.begin(w)
    if held:
        w.line("G::run(smem, held);")
    else:
        if doubled:
            emit_landed(w, fetched)
        w.line(f"G::{'template run<true>' if doubled else 'run'}(smem, n0, k0, ks, load_b);")
    read = "G::read({acc}, smem, {r}, {c})"
    if s.split_k > 1:
        w.line(f"using S = MailedShares<G, {s.split_k}>;")
        w.line(f"float* const parts = {mail} + tile * S::FLOATS;")
        w.line(f"if (split != {s.split_k - 1}) return S::send(smem, parts, split);")
        read = "S::read({acc}, smem, parts, {r}, {c})"
    if once:
        epilogue.finish(w, read)
        return
    w.line("const int m0 = 0;")
    emit_epilogue(w, body, stores, result=form.dot.result, demanded=code.demanded, m=form.m,
                  n=form.n, tile_m=s.bm, bm=str(s.bm), bn=s.bn, lanes=lanes, read=read,
                  accumulator="float", row0="", pointers=pointers, outputs=outputs, names=names,
                  read_only=read_only, threads=threads)


class _Epilogue:
    """The epilogue of a tile for which every thread has one piece at most. What it reads of memory
    is requested before the stream, so that it does not wait for that behind it."""

    def __init__(self, code: DotCode, stores: Sequence[Store], lanes: int,
                 pointers: Mapping[Value, str], outputs: Sequence[str],
                 read_only: Sequence[Value], names: Mapping[Var, str],
                 flagged: Collection[Value]) -> None:
        self.code, self.stores, self.lanes, self.outputs = code, stores, lanes, outputs
        self.pointers, self.flagged = pointers, flagged
        self.asked: dict[tuple[Value, IndexMap, int], str] = {}
        self.pieces = code.s.bm * code.s.bn // lanes
        self.make = lambda w: BodyEmitter(
            w, code.sig.body, pointers, lane=code.form.n, lanes=lanes,
            var_names={**names, code.form.m: "m", code.form.n: "n"}, read_only=read_only)

    def begin(self, w: Writer) -> None:
        """Names the piece of this thread (one that exists, whichever thread it is) and loads."""
        form, bn, lanes = self.code.form, self.code.s.bn, self.lanes
        self.em = self.make(w)
        w.line(f"const int own = min(thread_id(), {self.pieces - 1});")
        w.line(f"const int m = own / {bn // lanes}, c = own % {bn // lanes} * {lanes};")
        inside = f"min(n0 + c, {form.n.size - lanes})" if form.n.size % bn else "n0 + c"
        w.line(f"const int n = {inside};")
        for value, index in self._loads():
            if value in self.flagged and not dynamics(index):
                self._ask(w, value, index)
            else:
                self.em.emit(value, index)

    def _ask(self, w: Writer, value: Value, index: IndexMap) -> None:
        """Asks for an element with flags (or as many as there are lanes), which is waited for where
        it is used: behind the stream."""
        em, at = self.em, self.em.split(index)
        pattern = access(linearize(at, value.type.dims), em.lane)
        if pattern in (Access.CONTIGUOUS, Access.UNIFORM):
            lanes = em.lanes if pattern is Access.CONTIGUOUS else 1
            name = self.asked[value, at, lanes] = w.fresh("asked")
            w.line(f"Asked<{c_type(value.type.dtype)}, {lanes}> {name};")
            w.line(f"{name}.ask({self._at(value, at)});")
        em.bind_load(value, lambda at, lanes: self._landed(value, at, lanes))

    def _landed(self, value: Value, at: IndexMap, lanes: int) -> str:
        t, where = compute(value.type.dtype), self._at(value, at)
        if (name := self.asked.get((value, at, lanes))) is not None:
            return f"landed<{t}>({name}, {where})"
        return f"load<{t}{f', {lanes}' if lanes > 1 else ''}>({where})"

    def _at(self, value: Value, at: IndexMap) -> str:
        return f"{self.pointers[value]} + {self.em.code(linearize(at, value.type.dims))}"

    def _loads(self) -> list[tuple[Value, IndexMap]]:
        """Elements of buffers that are read whatever the guards on the way say."""
        body, result = self.code.sig.body, self.code.form.dot.result
        roots = [(body.outputs[s.result], s.index) for s in self.stores]
        roots += [(d.value, d.index) for s in self.stores for d in dynamics(s.index)]
        guarded: set[tuple[Value, IndexMap]] = set()
        found: dict[tuple[Value, IndexMap], None] = {}
        for n in walk(body, roots, stop=lambda v, _: v is result):
            if n.guards:
                guarded.update((x.value, x.index) for x in walk(
                    body, [(n.value, n.index)], stop=lambda v, _: v is result))
            if n.op is None:
                found[n.value, n.index] = None
        return [x for x in found if x not in guarded]

    def finish(self, w: Writer, read: str) -> None:
        """``read``: as of `emit_piece`."""
        form, lanes, em = self.code.form, self.lanes, self.em
        body, t = self.code.sig.body, compute(form.dot.result.type.dtype)
        tests = [f"thread_id() < {self.pieces}"]
        tests += [f"n0 + c < {form.n.size}"] if form.n.size % self.code.s.bn else []
        with em.scope(f"if ({' && '.join(tests)})"):
            w.line(f"float acc[{lanes}];")
            w.line(read.format(acc="acc", r="m", c="c") + ";")
            w.line(f"{vector(t, lanes)} dot;")
            w.line(f"for (int e = 0; e < {lanes}; ++e) dot{'.x[e]' if lanes > 1 else ''} = "
                   "acc[e];")
            em.bind(form.dot.result, self.code.demanded[0], "dot", vector=lanes > 1)
            values = [em.emit(body.outputs[s.result], s.index) for s in self.stores]
            for s, v in zip(self.stores, values, strict=True):
                em.store(self.outputs[s.result], store_offset(body, s), v,
                         body.outputs[s.result].type.dtype)


def _begin(w: Writer, code: DotCode, threads: int) -> None:
    """Decodes ``task`` into (batch, tile of n, share of k), the share fastest, and names the type.

    ``ks``: elements of k of the task.
    """
    s, form = code.s, code.form
    assert code.element is not None and code.rhs_element is not None
    of = shape(code, threads)
    tile = "task"
    if s.split_k > 1:
        w.line(f"const int split = task % {s.split_k}, tile = task / {s.split_k};")
        tile = "tile"
        w.line(f"const int k0 = split * {of.share};")
        w.line(f"const int ks = min({of.share}, max({form.k.size} - k0, 0));")
    else:
        w.line(f"const int k0 = 0, ks = {form.k.size};")
    w.line(f"const int n0 = {tile} % {code.tiles_n} * {s.bn};")
    w.line(f"const int b = {tile} / {code.tiles_n};")
    w.line("(void)b;")
    wk = s.warps[2] if code.rhs.k_major else 1
    stored = f", {stored_type(code.rhs_element)}" if code.rhs_element is not code.element else ""
    scale = scale_of(code)
    group = "" if scale is None else f", {scale.per}, {c_type(scale.view.param.type.dtype)}"
    w.line(f"using G = Gemv<{c_type(code.element)}, {form.m.size}, {form.n.size}, {form.k.size}, "
           f"{s.bn}, {of.share}, {s.stages}, {of.u}, {wk}, {threads}, "
           f"{'true' if code.rhs.k_major else 'false'}, {'true' if of.mma else 'false'}"
           f"{', true' if of.empty else ', false' if stored else ''}{stored}{group}>;")
    w.line(f"static_assert(G::SHARED_BYTES == {of.shared_bytes}, \"shared memory\");")


def _emit_scales(w: Writer, code: DotCode, pointers: Mapping[Value, str], threads: int) -> str:
    """What requests a task's scales, in front of its weights; "" if it has none."""
    scale = scale_of(code)
    if scale is None:
        return ""
    emit_address(w, code, scale, pointers)
    return f"G::request_scales<{width_of(code, scale, shape(code, threads))}>(smem, n0, k0, " \
        "scale_address); "


def _emit_load_b(w: Writer, code: DotCode, pointers: Mapping[Value, str],
                 read_only: Sequence[Value], threads: int) -> None:
    """``load_b(to, row, col)``, with a test wherever ``Gemv`` may ask for k = K or n = N."""
    form, s, of = code.form, code.s, shape(code, threads)
    assert code.rhs_element is not None
    # emit_loader tests an index whose tile does not divide the size; one more than it does not.
    tiles = {form.n: form.n.size + 1 if of.n_tail else s.bn,
             form.k: form.k.size + 1 if of.k_tail else 1}
    emit_loader(w, "load_b", code.sig.body, code.rhs, code.rhs_element, pointers,
                {form.batch: "b"}, read_only, tiles, copy="cp_async_stream")


def _emit_x(w: Writer, code: DotCode, pointers: Mapping[Value, str], read_only: Sequence[Value],
            names: Mapping[Var, str]) -> None:
    """``x_piece(int m, int k)``: 16 bytes of x; zeros behind the last element of k."""
    form, body, x = code.form, code.sig.body, code.lhs
    assert code.element is not None
    t, piece = c_type(code.element), 16 // code.element.itemsize
    own = {**names, form.m: "m", form.k: "k"}
    with w.block(f"const auto x_piece = [&](int m, int k) -> Piece<{t}>", "};"):
        if x.in_pieces and x.param is not None and x.offset is not None and x.k_major \
                and x.offset.is_static and not x.guard.bounds and not x.others:
            em = BodyEmitter(w, body, pointers, lane=form.k, lanes=piece, var_names=own)
            load = "ld_nc" if x.param in read_only else "*"
            w.line(f"return {load}(reinterpret_cast<const Piece<{t}>*>({pointers[x.param]} + "
                   f"{em.code(x.offset)}));")
            return
        w.line(f"Piece<{t}> out{{}};")
        wide = vector_width(body, [(x.value, x.index)], [], form.k, limit=piece)
        if wide == piece and form.k.size % piece == 0:
            em = BodyEmitter(w, body, pointers, lane=form.k, lanes=piece, var_names=own,
                             read_only=read_only)
            v = em.emit(x.value, x.index)
            with w.block(f"for (int e = 0; e < {piece}; ++e)"):
                w.line(f"out.x[e] = convert<{t}>({lane_of(v, 'e')});")
        else:
            with w.block(f"for (int e = 0; e < {piece} && k + e < {form.k.size}; ++e)"):
                w.line("const int ke = k + e;")
                em = BodyEmitter(w, body, pointers, var_names={**own, form.k: "ke"},
                                 read_only=read_only)
                w.line(f"out.x[e] = convert<{t}>({em.emit(x.value, x.index)});")
        w.line("return out;")


def _emit_flagged_x(w: Writer, code: DotCode, pointers: Mapping[Value, str],
                    read_only: Sequence[Value], names: Mapping[Var, str],
                    flagged: Collection[Value]) -> None:
    """``XWords``, what a piece of x is made of; ``ask_x(XWords&, m, k)`` for what has flags,
    ``early_x(XWords&, m, k)`` for the rest, ``x_there(const XWords&)`` and
    ``x_piece(const XWords&, m, k)``, as of `_emit_x`."""
    form, body, x = code.form, code.sig.body, code.lhs
    assert code.element is not None
    t, piece = c_type(code.element), 16 // code.element.itemsize
    own = {**names, form.m: "m", form.k: "k"}
    ask, early, made = w.child(), w.child(), w.child()
    em = BodyEmitter(made, body, pointers, lane=form.k, lanes=piece, var_names=own,
                     read_only=read_only)
    asked: dict[tuple[Value, IndexMap], tuple[str, str]] = {}  # member, type of its words

    def load_of(v: Value) -> Load:
        def load(index: IndexMap, lanes: int) -> str:
            offset = em.code(linearize(index, v.type.dims))
            if lanes != piece:  # the same for all of the piece
                return f"load<{compute(v.type.dtype)}>({pointers[v]} + {offset})"
            if (v, index) not in asked:
                name = f"words{len(asked)}"
                asked[v, index] = name, f"Asked<{c_type(v.type.dtype)}, {piece}>"
                ask.line(f"x.{name}.ask({pointers[v]} + {offset});")
            return f"from<{compute(v.type.dtype)}>(x.{asked[v, index][0]})"
        return load

    others: dict[tuple[Value, IndexMap], tuple[str, str]] = {}  # likewise

    def early_load_of(v: Value) -> Load:
        def load(index: IndexMap, lanes: int) -> str:
            offset = em.code(linearize(index, v.type.dims))
            t, how = compute(v.type.dtype), "load_ro" if v in read_only else "load"
            if lanes != piece:
                return f"{how}<{t}>({pointers[v]} + {offset})"
            if (v, index) not in others:
                name = f"early{len(others)}"
                others[v, index] = name, vector(t, piece)
                early.line(f"x.{name} = {how}<{t}, {piece}>({pointers[v]} + {offset});")
            return f"x.{others[v, index][0]}"
        return load

    split = {n.value for n in walk(body, [(x.value, x.index)])
             if sum(i.depends_on(form.k) for i in n.index) > 1}
    for v in body.inputs:
        if v in flagged:
            em.bind_load(v, load_of(v))
        elif v not in split:
            em.bind_load(v, early_load_of(v))
    value = em.emit(x.value, x.index)
    made.line(f"Piece<{t}> out;")
    with made.block(f"for (int e = 0; e < {piece}; ++e)"):
        made.line(f"out.x[e] = convert<{t}>({lane_of(value, 'e')});")
    made.line("return out;")
    epoch = next(f"{pointers[v]}.epoch" for v in body.inputs if v in flagged)
    members = " ".join(f"{kind} {name};" for name, kind in (*asked.values(), *others.values()))
    there = " && ".join(f"x.{name}.all_there({epoch})" for name, _ in asked.values())
    w.line(f"struct XWords {{ {members} }};")
    with w.block("const auto ask_x = [&](XWords& x, int m, int k)", "};"):
        w.line("(void)x, (void)m;")
        w.extend(ask)
    with w.block("const auto early_x = [&](XWords& x, int m, int k)", "};"):
        w.line("(void)x, (void)m, (void)k;")
        w.extend(early)
    w.line(f"const auto x_there = [&](const XWords& x) {{ return {there}; }};")
    with w.block(f"const auto x_piece = [&](const XWords& x, int m, int k) -> Piece<{t}>", "};"):
        w.line("(void)m, (void)k;")
        w.extend(made)


def _emit_rows(w: Writer, code: DotCode, pointers: Mapping[Value, str], outputs: Sequence[str],
               read_only: Sequence[Value], names: Mapping[Var, str], threads: int,
               flagged: Collection[Value]) -> None:
    """Whole normalised rows of x: one row by the block, several by a warp each."""
    form, body, k, m = code.form, code.sig.body, code.form.k, code.form.m.size
    assert code.element is not None
    t = c_type(code.element)
    stores = tuple(x for x in form.stores if k in x.over)
    rows = [RowOutput(form.dot.lhs, form.lhs_index),
            *(RowOutput(body.outputs[x.result], x.index) for x in stores)]
    warps, of = threads // 32, shape(code, threads)
    whole = m == 1 and _states_fit(code, warps)
    read = sources(body, form.dot.lhs)
    asks = not read.isdisjoint(flagged)
    lanes = _row_lanes(code, rows, stores, threads if whole else 32, asks=asks)
    turns = 1 if whole else math.ceil(m / warps)
    with w.block(f"for (int turn = 0; turn < {turns}; ++turn)" if turns > 1 else ""):
        mine = "0" if whole else f"turn * {warps} + warp_id()" if turns > 1 else "warp_id()"
        w.line(f"const int m = {mine};")
        # The same for all lanes of a warp: all that are there take part in its shuffles.
        with w.block(f"if (m < {m})" if not whole and m % warps else ""):
            em = BodyEmitter(w, body, pointers, lane=k, lanes=lanes,
                             var_names={**names, form.m: "m"}, read_only=read_only)
            if asks:
                Together(em, pointers).bind([v for v in body.inputs if v in read & set(flagged)],
                                            [v for v in body.inputs if v in read & set(read_only)])

            def sink(i: int, x: Emitted) -> None:
                if i == 0:
                    at = em.code(Index.of(k))
                    if of.dealt:
                        em.w.line(f"G::template put_x<{lanes}>(smem, m, {at}, {x});")
                        return
                    vec = f", {lanes}" if lanes > 1 else ""
                    em.w.line(f"store<{t}{vec}>(G::x(smem, m, {at}), {x});")
                    return
                store = stores[i - 1]
                with em.w.block("if (n0 == 0)"):
                    em.store(outputs[store.result], store_offset(body, store), x,
                             body.outputs[store.result].type.dtype)

            emit_row_chain(em, k, rows, sink,
                           team=block_team(threads, "smem", idle="true") if whole else warp_team())
    if (padded := of.pitch) > k.size:
        gap, place = padded - k.size, "padded_x" if of.dealt else "x"
        w.line(f"for (int i = thread_id(); i < {m * gap}; i += {threads}) "
               f"*G::{place}(smem, i / {gap}, {k.size} + i % {gap}) = convert<{t}>(0.0f);")
    meet(w, asks)
    w.line("syncthreads();")


def _states_fit(code: DotCode, warps: int) -> bool:
    """Whether the states of a block's reduces fit the scratch."""
    states = sum(8 + 8 * len(o.results) for o in code.sig.body.ops if isinstance(o, ops.Reduce))
    return states * warps <= SCRATCH


def _row_lanes(code: DotCode, rows: Sequence[RowOutput], stores: Sequence[Store], team: int, *,
               asks: bool) -> int:
    """Columns of a row that a thread handles at a time: 16 bytes, but work for all threads; of a
    row that it ``asks`` for until it is there, as many as it takes to ask but once."""
    body, k = code.sig.body, code.form.k
    assert code.element is not None
    sinks = [(Index.of(k), code.element.itemsize)]
    sinks += [(store_offset(body, x), body.outputs[x.result].type.dtype.itemsize) for x in stores]
    lanes = vector_width(body, [(r.value, r.index) for r in rows], sinks, k,
                         reduction=lambda op, at: row_demands(op, at, k),
                         limit=16 // code.element.itemsize)
    while lanes > 1 and k.size < team * lanes and not (asks and k.size > team * lanes // 2):
        lanes //= 2
    return lanes
