"""A convolution whose image stays in shared memory while its taps pass (device/gemm_image.cuh).

    window(pad(x)) of stride 1: rows of the product are places of the image, its k (tap, channel)

    positions   every place of the padded image has a number; a tap is a constant distance in it
    box         a tile is 8 x 8, 16 x 8 or 8 x 16 places of an image; it copies what is around them
    line        a tile is neighbouring positions of all images, one behind the other: zeros behind
                a line are the margin of the next one, too, and so are those behind an image

        w w w 0        3 x 3 taps, 2 x 3 places: lines of 4, images of 3 lines. What of a line's
        w w w 0        tile falls on a margin is not stored: of 56 x 56 places 3.6 %, of 14 x 14
        0 0 0 0        15 % (of a box, what is outside the image)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from jaxmono.codegen.operand import is_zero
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.demand import demands
from jaxmono.fusion.indexing import Index, delinearize
from jaxmono.fusion.padded_images import margin
from jaxmono.fusion.plan import DotForm, Sig
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value
from jaxmono.hlo.types import DType

_FITS = 1 << 31


@dataclass(frozen=True)
class Image:
    """What a convolution reads: ``images`` x ``height`` x ``width`` x ``channels`` of a buffer.

    Attributes:
      param: the buffer.
      low: zeros above and to the left.
      out: places of an image, down and across.
      taps, dilation: down and across.
      inner: channels that the buffer has; ``channels``: with zeros behind them.
      pooled: rows are in the order of windows of 2 x 2 (fusion/window_rows.py).
    """

    param: Value
    images: int
    height: int
    width: int
    channels: int
    low: tuple[int, int]
    out: tuple[int, int]
    taps: tuple[int, int]
    dilation: tuple[int, int]
    inner: int
    pooled: bool = False

    @property
    def width_bytes(self) -> int:
        """Of a copy: 16, or what all places are aligned to."""
        return math.gcd(self.inner * 2, 16)

    @property
    def margin(self) -> tuple[int, int]:
        """Zeros between two lines, and between two images, that serve both."""
        y, x = (margin(*of) for of in zip(self.out, self.taps, self.dilation, self.low,
                                          (self.height, self.width), strict=True))
        return y, x


@dataclass(frozen=True)
class Arrangement:
    """The positions of a tile of ``rows`` rows.

    Attributes:
      tall: lines of 8 places in a box; 0: a line.
      pitch: positions from a line to the next.
      tiles: of all images.
      copied: positions that a tile copies.
    """

    image: Image
    rows: int
    tall: int
    pitch: int
    tiles: int
    copied: int

    @property
    def wide(self) -> int:
        """Places of a box across."""
        return self.rows // self.tall

    @property
    def group(self) -> int:
        """Positions from eight rows to the next eight."""
        return self.pitch if self.tall else 8

    @property
    def second(self) -> int:
        """Those of the second 64 rows: below, to the right, or behind the first."""
        return (8 * self.pitch if self.tall == 16 else 8) if self.tall else 64

    def shape(self) -> str:
        """C++ type."""
        (ty, tx), (dy, dx) = self.image.taps, self.image.dilation
        width = self.image.width_bytes
        unaligned = f", {width}, {self.image.inner}" \
            if width < 16 or self.image.inner < self.image.channels else ""
        return (f"ImageShape<{self.copied}, {ty}, {tx}, {dy * self.pitch}, {dx}, {self.group}, "
                f"{self.second if self.rows > 64 else 0}{unaligned}>")


@lru_cache(maxsize=64)
def image_of(sig: Sig) -> Image | str:
    """The image of a Sig's left operand, or why it is none."""
    form, body = sig.form, sig.body
    assert isinstance(form, DotForm)
    value, index = form.dot.lhs, form.lhs_index
    while isinstance(op := body.producer.get(value), ops.Transpose | ops.Reshape):
        ((value, index),) = ((d.value, d.index) for d in demands(op, index) or ())
    window = body.producer.get(value)
    if not isinstance(window, ops.Window):
        return "rows are no windows"
    rank = window.operand.type.rank
    spatial = window.dimensions
    if spatial not in ((rank - 2,), (rank - 3,), (rank - 3, rank - 2)):
        return "windows are not over one or two dimensions in front of the channels"
    if any(s != 1 for s in window.strides):
        return "windows are not one place apart"
    source, low = window.operand, (0,) * rank
    pad = body.producer.get(source)
    if isinstance(pad, ops.Pad):
        if any(pad.interior) or min(*pad.low, *pad.high) < 0 \
                or not is_zero(body, pad.padding_value):
            return "the padding is not zeros around the image"
        if any(pad.low[d] or (pad.high[d] and d < rank - 1)
               for d in range(rank) if d not in spatial):
            return "images are padded, or channels in front"
        source, low = pad.operand, pad.low
    if source not in body.inputs:
        return "the image is computed"
    dims, channels = window.result.type.dims, window.operand.type.dims[-1]
    *tap, channel = delinearize(Index.of(form.k), (*window.sizes, channels))
    m = delinearize(Index.of(form.m), dims[:rank - 1])
    *outer, high, wide = (1, *dims[:rank - 1])
    pooled = form.taps == 4 and spatial[0] == rank - 3 and not high % 2 and not wide % 2
    if pooled:
        *m, y, x, dy, dx = delinearize(Index.of(form.m), (*outer[1:], high // 2, wide // 2, 2, 2))
        m = (*m, y * 2 + dy, x * 2 + dx)
    if tuple(index) != (*m, channel, *tap) or form.m.size != math.prod(dims[:rank - 1]):
        return "rows or taps come in another order"
    # A dimension that has no windows is down where it lies between.
    inside = range(spatial[0], rank - 1)
    taps, apart = ([of[spatial.index(d)] if d in spatial else 1 for d in inside]
                   for of in (window.sizes, window.dilations))
    size, out = (_pair([of[d] for d in inside], 1) for of in (source.type.dims, dims))
    made = Image(source, math.prod(dims[:spatial[0]]), *size, channels,
                 _pair([low[d] for d in inside], 0), out, _pair(taps, 1), _pair(apart, 1),
                 source.type.dims[-1], pooled)
    (down, right), (oh, ow) = made.margin, made.out
    if oh > made.height + down or ow > made.width + right:
        return "it has more places than lines with a margin"
    if made.images * (made.height + down) * (made.width + right) * channels >= _FITS:
        return "its elements do not count in 31 bits"
    return made


def _pair(x: Sequence[int], otherwise: int) -> tuple[int, int]:
    """Down and across of what may only be across."""
    return (x[0], x[1]) if len(x) == 2 else (otherwise, x[0])


def takes_image(sig: Sig, element: DType | None) -> str | None:
    """Why the image of a contraction cannot stay in shared memory; None if it can."""
    form = sig.form
    assert isinstance(form, DotForm)
    if element not in (DType.BF16, DType.F16):
        return "images have 16 bits"
    if form.batch.size > 1 or form.row_prologue or form.reduced:
        return "rows are normalised, reduced or a batch's own"
    made = image_of(sig)
    if isinstance(made, str):
        return made
    if form.taps > 1 and not made.pooled:
        return "rows are read in windows, not of 2 x 2"
    if made.channels % 16:
        return "channels are no multiple of 16"
    if made.width_bytes < 4:
        return "channels in memory are an odd number"
    return "there is one tap" if math.prod(made.taps) == 1 else None


def arrangements(image: Image, rows: int) -> list[Arrangement]:
    """Those of tiles of so many rows."""
    (oh, ow), (ty, tx), (dy, dx) = image.out, image.taps, image.dilation
    down, right = image.margin
    pitch, lines = image.width + right, image.height + down
    last = ((image.images - 1) * lines + oh - 1) * pitch + ow
    found = [] if image.pooled else [Arrangement(
        image, rows, 0, pitch, math.ceil(last / rows),
        rows + (ty - 1) * dy * pitch + (tx - 1) * dx)]
    for tall in (8,) if rows == 64 else (16, 8):
        wide = rows // tall
        pitch = wide + (tx - 1) * dx
        found.append(Arrangement(
            image, rows, tall, pitch, image.images * math.ceil(oh / tall) * math.ceil(ow / wide),
            (tall + (ty - 1) * dy) * pitch))
    return found


def emit_image(w: Writer, a: Arrangement) -> None:
    """``const auto place = [&](int p)``: the first element of position p of the tile whose first
    row is m0; -1 where it is zeros."""
    x = a.image
    with w.block("const auto place = [&](int p)", "};"):
        if a.tall:
            _emit_box(w, a)
            w.line(f"const int y = y0 + p / {a.pitch}{_minus(x.low[0])}, "
                   f"x = x0 + p % {a.pitch}{_minus(x.low[1])};")
            inside = []
        else:
            _emit_position(w, a, "p")
            w.line(f"const int y = line{_minus(x.low[0])}, x = place{_minus(x.low[1])};")
            inside = [f"n < {x.images}"]
        inside += [f"static_cast<unsigned>({at}) < {size}u"
                   for at, size in (("y", x.height), ("x", x.width))]
        w.line(f"return {' && '.join(inside)} ? ((n * {x.height} + y) * {x.width} + x) * "
               f"{x.inner} : -1;")


def emit_row(w: Writer, a: Arrangement) -> None:
    """``const auto row = [&](int r)``: the row of the product that row r of the tile is, or -1; of
    the first of a window the window's number."""
    x, (oh, ow) = a.image, a.image.out
    with w.block("const auto row = [&](int r)", "};"):
        if a.tall:
            _emit_box(w, a)
            down, across = ("r / 8", "r % 8") if a.tall == 16 or a.rows == 64 else \
                ("r % 64 / 8", "r / 64 * 8 + r % 8")
            w.line(f"const int line = y0 + {down}, place = x0 + {across};")
            inside = []
        else:
            _emit_position(w, a, "r")
            inside = [f"n < {x.images}"]
        inside += [f"line < {oh}", f"place < {ow}"]
        at = f"(n * {oh // 2} + line / 2) * {ow // 2} + place / 2" if x.pooled \
            else f"(n * {oh} + line) * {ow} + place"
        w.line(f"return {' && '.join(inside)} ? {at} : -1;")


def _emit_position(w: Writer, a: Arrangement, of: str) -> None:
    """Of a line: n, line, place of position m0 + ``of``, margins counted."""
    lines = a.image.height + a.image.margin[0]
    w.line(f"const int n = udiv<{lines * a.pitch}>(m0 + {of}), "
           f"rest = umod<{lines * a.pitch}>(m0 + {of});")
    w.line(f"const int line = udiv<{a.pitch}>(rest), place = umod<{a.pitch}>(rest);")


def _emit_box(w: Writer, a: Arrangement) -> None:
    """n, y0, x0 of the box whose first row is m0."""
    (oh, ow) = a.image.out
    down, across = math.ceil(oh / a.tall), math.ceil(ow / a.wide)
    w.line(f"const int box = m0 / {a.rows}, n = udiv<{down * across}>(box);")
    w.line(f"const int y0 = umod<{down}>(udiv<{across}>(box)) * {a.tall}, "
           f"x0 = umod<{across}>(box) * {a.wide};")


def _minus(x: int) -> str:
    return f" - {x}" if x else ""

