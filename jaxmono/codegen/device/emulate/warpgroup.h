// wgmma: queues of products per warpgroup, and the products.
//
// As in matrix.h, a product accumulates in f32, k by k.
#pragma once
#include "emulate/grid.h"
#include "emulate/hopper.h"
#include "emulate/matrix.h"

namespace jaxmono::emulate {
namespace {

constexpr int WG_ROWS = 64, WG_K = 16, WG_MAX_COLUMNS = 256;
// Floats: accumulators, a, b, one product of integers.
constexpr size_t WG_SCRATCH =
    2 * WG_ROWS * WG_MAX_COLUMNS + 2 * WG_K * (WG_ROWS + WG_MAX_COLUMNS);

// A descriptor's fields, in bytes.
struct Operand {
  uint32_t start, lead, stride, line;
};
Operand operand(uint64_t bits) {
  const auto field = [&](int at) { return static_cast<uint32_t>(bits >> at & 0x3fff) << 4; };
  return {field(0), field(16), field(32), bits >> 62 == 2 ? 64u : 128u};
}

// Where 8 elements are: k .. k + 7 of row n (K-major), or rows n .. n + 7 of k (MN).
uint32_t piece_address(const Operand& o, bool mn, uint32_t n, uint32_t k) {
  const uint32_t at = mn ? o.start + n / 64 * o.lead + k / 8 * o.stride + k % 8 * 128 + n % 64 * 2
                         : o.start + n / 8 * o.stride + n % 8 * o.line + k * 2;
  return at ^ (at >> 3 & (o.line - 16));  // the 128-byte swizzle, or that of 64
}

void check_operand(const Lane& me, uint64_t bits, bool mn, uint32_t rows, const char* name) {
  const Operand o = operand(bits);
  const char* wrong = nullptr;
  const uint64_t form = bits & ~0x3fff3fff3fffull;
  if (form != 1ull << 62 && form != 2ull << 62) wrong = "its swizzle is not that of 128 or 64 bytes";
  else if (mn && o.line != 128) wrong = "lines of 64 bytes are K-major here";
  else if (mn && o.start % 1024 != 0) wrong = "it does not begin at a panel's first row, k % 8 == 0";
  else if (!mn && o.start % 32 != 0) wrong = "it does not begin at k % 16 == 0";
  const uint32_t last = mn ? o.start + (rows - 1) / 64 * o.lead + o.stride + 1024
                           : o.start + (rows / 8 - 1) * o.stride + 7 * o.line + 32;
  if (wrong == nullptr && last > me.shared_bytes) wrong = "it ends outside shared memory";
  if (wrong != nullptr)
    fail("wgmma, operand %s of block %d warp %d: shared memory offset %u, lead %u, stride %u: %s",
         name, me.block_id, me.warp_id, o.start, o.lead, o.stride, wrong);
}

// An operand as float [16 k][rows].
template <class T>
void expand(float* out, const unsigned char* memory, uint64_t bits, bool mn, int rows) {
  const Operand o = operand(bits);
  for (int k = 0; k < WG_K; k += mn ? 1 : 8)
    for (int n = 0; n < rows; n += mn ? 8 : 1) {
      const auto row = static_cast<uint32_t>(n), depth = static_cast<uint32_t>(k);
      uint32_t pairs[4];
      memcpy(pairs, memory + piece_address(o, mn, row, depth), sizeof pairs);
      float x[8];
      for (int i = 0; i < 4; ++i) T::expand(x + 2 * i, pairs[i]);
      for (int i = 0; i < 8; ++i) out[mn ? k * rows + n + i : (k + i) * rows + n] = x[i];
    }
}

// A K-major operand of bytes as float [32 k][rows].
template <class T>
void expand_bytes(float* out, const unsigned char* memory, uint64_t bits, int rows) {
  const Operand o = operand(bits);
  for (int k = 0; k < WG_K; k += 8)
    for (int n = 0; n < rows; ++n) {
      uint32_t fours[4];
      memcpy(fours, memory + piece_address(o, false, static_cast<uint32_t>(n),
                                           static_cast<uint32_t>(k)), sizeof fours);
      float x[16];
      for (int i = 0; i < 4; ++i) T::expand(x + 4 * i, fours[i]);
      for (int i = 0; i < 16; ++i) out[(2 * k + i) * rows + n] = x[i];
    }
}

// A K-major operand of f32 as float [8 k][rows].
void expand_words(float* out, const unsigned char* memory, uint64_t bits, int rows) {
  const Operand o = operand(bits);
  for (int k = 0; k < WG_K; k += 8)  // of 16 bits
    for (int n = 0; n < rows; ++n) {
      uint32_t words[4];
      memcpy(words, memory + piece_address(o, false, static_cast<uint32_t>(n),
                                           static_cast<uint32_t>(k)), sizeof words);
      for (int i = 0; i < 4; ++i) Tf32::expand(out + (k / 2 + i) * rows + n, words[i]);
    }
}

// d [64][n] += a [depth][64] transposed times b [depth][n].
void multiply(float* __restrict__ d, const float* __restrict__ a, const float* __restrict__ b,
              int n, int depth) {
  for (int c = 0; c < n; c += 16)
    for (int r = 0; r < WG_ROWS; r += 4) {
      Row acc[4][2];
      for (int i = 0; i < 4; ++i) memcpy(acc[i], d + (r + i) * n + c, sizeof acc[i]);
      for (int k = 0; k < depth; ++k) {
        Row x[2];
        memcpy(x, b + k * n + c, sizeof x);
        for (int i = 0; i < 4; ++i) {
          acc[i][0] += a[k * WG_ROWS + r + i] * x[0];
          acc[i][1] += a[k * WG_ROWS + r + i] * x[1];
        }
      }
      for (int i = 0; i < 4; ++i) memcpy(d + (r + i) * n + c, acc[i], sizeof acc[i]);
    }
}

// Fragments to rows, or back.
template <bool LOAD>
void exchange(float* rows, const Product& p) {
  const int n = static_cast<int>(p.columns);
  for (int t = 0; t < 128; ++t) {
    float* upper = rows + (t / 32 * 16 + t % 32 / 4) * n + t % 4 * 2;
    float* lower = upper + 8 * n;
    float* d = p.d[t];
    for (int c = 0; c < n; c += 8, d += 4) {
      memcpy(LOAD ? upper + c : d, LOAD ? d : upper + c, 8);
      memcpy(LOAD ? lower + c : d + 2, LOAD ? d + 2 : lower + c, 8);
    }
  }
}

// The left operand from the fragments of its threads, as float [16 k][64].
template <class T>
void expand_registers(float* out, const Product& p) {
  for (int t = 0; t < 128; ++t)
    for (int i = 0; i < 4; ++i) {
      float x[2];
      T::expand(x, p.registers[t][i]);
      const int row = t / 32 * 16 + t % 32 / 4 + i % 2 * 8, k = t % 4 * 2 + i / 2 * 8;
      out[k * WG_ROWS + row] = x[0];
      out[(k + 1) * WG_ROWS + row] = x[1];
    }
}

// The same of bytes, as float [32 k][64].
template <class T>
void expand_byte_registers(float* out, const Product& p) {
  for (int t = 0; t < 128; ++t)
    for (int i = 0; i < 4; ++i) {
      float x[4];
      T::expand(x, p.registers[t][i]);
      const int row = t / 32 * 16 + t % 32 / 4 + i % 2 * 8, k = t % 4 * 4 + i / 2 * 16;
      for (int e = 0; e < 4; ++e) out[(k + e) * WG_ROWS + row] = x[e];
    }
}

// A product of bytes. Integers are exact in f32 over its 32 k, and are added to sums that wrap.
template <int FIRST, int OTHER>
void multiply_bytes(float* d, float* a, float* b, const unsigned char* memory, const Product& p) {
  const int n = static_cast<int>(p.columns);
  const bool a_other = p.form & WGMMA_A_OTHER, b_other = p.form & WGMMA_B_OTHER;
  if (p.form & WGMMA_A_REGISTERS)
    (a_other ? expand_byte_registers<Byte<OTHER>> : expand_byte_registers<Byte<FIRST>>)(a, p);
  else
    (a_other ? expand_bytes<Byte<OTHER>> : expand_bytes<Byte<FIRST>>)(a, memory, p.a, WG_ROWS);
  (b_other ? expand_bytes<Byte<OTHER>> : expand_bytes<Byte<FIRST>>)(b, memory, p.b, n);
  if (FIRST != MMA_S8) return multiply(d, a, b, n, 2 * WG_K);
  float* const one = b + 2 * WG_K * WG_MAX_COLUMNS;
  memset(one, 0, sizeof(float) * static_cast<size_t>(WG_ROWS * n));
  multiply(one, a, b, n, 2 * WG_K);
  for (int i = 0; i < WG_ROWS * n; ++i) {
    uint32_t sum;
    memcpy(&sum, d + i, 4);
    sum += static_cast<uint32_t>(static_cast<int32_t>(one[i]));
    memcpy(d + i, &sum, 4);
  }
}

// The same of f32, as float [8 k][64].
void expand_word_registers(float* out, const Product& p) {
  for (int t = 0; t < 128; ++t)
    for (int i = 0; i < 4; ++i) {
      const int row = t / 32 * 16 + t % 32 / 4 + i % 2 * 8, k = t % 4 + i / 2 * 4;
      Tf32::expand(out + k * WG_ROWS + row, p.registers[t][i]);
    }
}

Warpgroup& warpgroup_of(const Lane& me) { return me.block->warpgroups[me.warp_id / 4]; }

// How many of the warpgroup's products all four warps have issued.
uint64_t issued_by_all(const Warpgroup& g) {
  uint64_t n = g.issued[0];
  for (int w = 1; w < 4; ++w) n = g.issued[w] < n ? g.issued[w] : n;
  return n;
}

// Does the products up to number `end`, which all four warps have issued.
void multiply_until(Lane& me, Warpgroup& g, uint64_t end) {
  float* const d = me.warp->worker->scratch;
  float* const a = d + WG_ROWS * WG_MAX_COLUMNS;
  float* const b = a + 2 * WG_K * WG_ROWS;
  const unsigned char* const memory = me.block->view;
  while (g.done < end) {
    const Product& p = g.ring[g.done & g.mask];
    const int n = static_cast<int>(p.columns);
    exchange<true>(d, p);
    // Products into the same accumulators one after another, without going through the fragments.
    do {
      const Product& q = g.ring[g.done & g.mask];
      if (q.form & (WGMMA_F8 | WGMMA_INTEGERS)) {
        (q.form & WGMMA_F8 ? multiply_bytes<MMA_E4M3, MMA_E5M2>
                           : multiply_bytes<MMA_S8, MMA_U8>)(d, a, b, memory, q);
        ++g.done;
        continue;
      }
      if (q.form & WGMMA_TF32) {
        if (q.form & WGMMA_A_REGISTERS) expand_word_registers(a, q);
        else expand_words(a, memory, q.a, WG_ROWS);
        expand_words(b, memory, q.b, n);
        multiply(d, a, b, n, WG_K / 2);
        ++g.done;
        continue;
      }
      const auto fill = q.form & WGMMA_F16 ? expand<F16> : expand<Bf16>;
      if (q.form & WGMMA_ZERO) memset(d, 0, sizeof(float) * static_cast<size_t>(WG_ROWS * n));
      if (q.form & WGMMA_A_REGISTERS) (q.form & WGMMA_F16 ? expand_registers<F16> : expand_registers<Bf16>)(a, q);
      else fill(a, memory, q.a, (q.form & WGMMA_A_MN) != 0, WG_ROWS);
      fill(b, memory, q.b, (q.form & WGMMA_B_MN) != 0, n);
      multiply(d, a, b, n, WG_K);
      ++g.done;
    } while (g.done < end && memcmp(g.ring[g.done & g.mask].d, p.d, sizeof p.d) == 0 &&
             g.ring[g.done & g.mask].columns == p.columns);
    exchange<false>(d, p);
  }
}

// Does all but the `newest` committed groups of this warp; false: other warps have yet to issue them.
bool retire(Lane& me, uint32_t newest) {
  Warpgroup& g = warpgroup_of(me);
  const int w = me.warp_id % 4;
  uint64_t end = g.done;
  while (end < g.issued[w] && g.ring[end & g.mask].group + newest < g.groups[w]) ++end;
  if (end > issued_by_all(g)) return false;
  multiply_until(me, g, end);
  if (g.done >= g.issued[w]) g.fenced[w] = false;
  return true;
}

void check_retired(const Lane& me) {
  if (me.warp_id / 4 >= me.block->n_warps / 4) return;
  const Warpgroup& g = warpgroup_of(me);
  if (g.issued[me.warp_id % 4] > g.done)
    fail("block %d thread %d ends with a wgmma in flight: wgmma_wait<0> is missing", me.block_id,
         me.thread_id);
}

void grow(Warpgroup& g) {
  const uint64_t capacity = g.ring == nullptr ? 16 : 2 * (g.mask + 1);
  auto* ring = static_cast<Product*>(malloc(capacity * sizeof(Product)));
  if (ring == nullptr) fail("out of memory for wgmma in flight");
  for (uint64_t i = g.done; i != g.issued_by_any; ++i)
    ring[i & (capacity - 1)] = g.ring[i & g.mask];
  free(g.ring);
  g.ring = ring;
  g.mask = capacity - 1;
}

}  // namespace

void wgmma_fence(void* const*) {
  Lane& me = self();
  warpgroup_of(me).fenced[me.warp_id % 4] = true;
}

void wgmma_commit(void* const*) {
  Lane& me = self();
  Warpgroup& g = warpgroup_of(me);
  ++g.groups[me.warp_id % 4];
  g.fenced[me.warp_id % 4] = false;  // stricter than the hardware: registers may be others by now
}

void wgmma_issue(void* const* args) {
  Lane& me = self();
  const Wgmma& x = *static_cast<const Wgmma*>(args[0]);
  for (int l = 1; l < 32; ++l) {
    const Wgmma& y = *static_cast<const Wgmma*>(args[l]);
    if (x.a != y.a || x.b != y.b || x.columns != y.columns || x.form != y.form)
      fail("wgmma: lanes 0 and %d of block %d warp %d have different operands", l, me.block_id,
           me.warp_id);
  }
  if (me.warp_id / 4 >= me.block->n_warps / 4)
    fail("wgmma in warp %d of block %d: its warpgroup has fewer than 4 warps", me.warp_id,
         me.block_id);
  Warpgroup& g = warpgroup_of(me);
  const int w = me.warp_id % 4;
  if (!g.fenced[w])
    fail("wgmma in warp %d of block %d without a wgmma_fence since %s", me.warp_id, me.block_id,
         g.issued[w] == 0 ? "the kernel's start" : "its wgmma_commit or wgmma_wait");
  if (g.issued[w] == g.issued_by_any) {
    if (!(x.form & WGMMA_A_REGISTERS))
      check_operand(me, x.a, (x.form & WGMMA_A_MN) != 0, WG_ROWS, "a");
    check_operand(me, x.b, (x.form & WGMMA_B_MN) != 0, x.columns, "b");
    if (g.ring == nullptr || g.issued_by_any - g.done > g.mask) grow(g);
    Product& p = g.ring[g.issued_by_any++ & g.mask];
    p.a = x.a, p.b = x.b, p.columns = x.columns, p.form = x.form, p.group = g.groups[w];
  }
  Product& p = g.ring[g.issued[w]++ & g.mask];
  if (p.a != x.a || p.b != x.b || p.columns != x.columns || p.form != x.form ||
      p.group != g.groups[w])
    fail("the warps of warpgroup %d of block %d issue different wgmmas", me.warp_id / 4,
         me.block_id);
  for (int l = 0; l < 32; ++l) {
    p.d[w * 32 + l] = static_cast<const Wgmma*>(args[l])->d;
    p.registers[w * 32 + l] = static_cast<const Wgmma*>(args[l])->registers;
  }

  const uint64_t all = issued_by_all(g);
  if (all == g.done || all != g.issued[w]) return;
  Worker& worker = *me.warp->worker;
  if (worker.random != 0 && draw(worker.random) % 4 == 0) multiply_until(me, g, all);
  for (int i = me.warp_id / 4 * 4; i < me.warp_id / 4 * 4 + 4; ++i) {
    Warp& other = me.block->warps[i];
    for (int l = 0; l < 32; ++l)
      if (other.state[l] == WAITING) other.state[l] = RUNNABLE, other.ready = true;
  }
}

void wgmma_wait(void* const* args) {
  const bool done = retire(self(), static_cast<const WgmmaWait*>(args[0])->newest);
  for (int l = 0; l < 32; ++l) static_cast<WgmmaWait*>(args[l])->done = done;
}

void wgmma_await(uint32_t newest) {
  Lane& me = self();
  while (!retire(me, newest)) {  // others may have run since it failed
    me.warp->state[me.lane_id] = WAITING;
    me.warp->wait[me.lane_id] = {"wgmma_wait, for other warps of the warpgroup", nullptr, 0};
    leave(*me.warp, me.lane_id);
  }
}

}  // namespace jaxmono::emulate
