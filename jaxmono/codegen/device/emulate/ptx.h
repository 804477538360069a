// The functions of ptx.cuh on the host.
//
// cp.async: a copy happens at the wait that it is matched by, not at its issue, so that a missing
// wait or barrier shows; with a random schedule some groups happen at issue instead.
#pragma once
#include "emulate/emulate.h"

namespace jaxmono {
namespace emulate {

struct Ldmatrix {
  const void* row;
  uint32_t* out;
};
struct Mma {
  void* d;  // float or uint32_t
  const uint32_t *a, *b;
  int mt, nt;
  int a_format = 0, b_format = 0;  // of bytes: MMA_S8 ...
};
enum { MMA_S8, MMA_U8, MMA_E4M3, MMA_E5M2 };
Compute ldmatrix_x4, ldmatrix_x4_trans, ldmatrix_x2, ldmatrix_x2_trans, mma_bf16, mma_f16, mma_tf32;
Compute mma_bytes;

inline void check_shared(const Lane& lane, const void* p, uint32_t bytes, const char* what) {
  const size_t offset = static_cast<const unsigned char*>(p) - lane.shared;
  if (offset + bytes > lane.shared_bytes || offset % bytes != 0)
    fail("%s: shared memory offset %td of %u bytes, of block %d thread %d: outside, or not %u-byte "
         "aligned",
         what, static_cast<ptrdiff_t>(offset), lane.shared_bytes, lane.block_id, lane.thread_id,
         bytes);
}

// Added to the bytes of a copy of floats that are rounded to tf32 (tma.h).
constexpr uint32_t ROUNDED = 1;
// Of no copy: a word that counts what has not happened yet.
constexpr uint32_t COUNTED = 128;
inline void round_tf32(void* to, const void* from, uint32_t bytes);

// Where wgmma reads, too: see ptx_mbarrier.cuh.
inline void write(const Copies& q, void* to, const void* from, uint32_t bytes) {
  if (bytes == COUNTED) {
    --*static_cast<uint32_t*>(to);
    return;
  }
  const bool rounded = (bytes & ROUNDED) != 0;
  bytes &= ~ROUNDED;
  if (from == nullptr) memset(to, 0, bytes);
  else if (rounded) round_tf32(to, from, bytes);
  else if (bytes == 16) memcpy(to, from, 16);
  else memcpy(to, from, bytes);
  if (q.view != 0) memcpy(static_cast<unsigned char*>(to) + q.view, to, bytes);
}

// Asks for a copy of this thread's. from: null for zeros.
inline void copy(void* to, const void* from, uint32_t bytes) {
  Copies& q = *self().copies;
  if (q.early) {
    write(q, to, from, bytes);
    return;
  }
  if (q.tail - q.head > q.mask) grow(q);
  q.ring[q.tail++ & q.mask] = {to, from, bytes, q.groups};
}

// looks: the address counts although nothing may be read.
template <uint32_t BYTES>
inline void cp_async(void* smem, const void* gmem, bool pred, bool looks = false) {
  Lane& lane = self();
  check_shared(lane, smem, BYTES, "cp_async destination");
  if ((pred || looks) && reinterpret_cast<uintptr_t>(gmem) % BYTES != 0)
    fail("cp_async source %p of block %d thread %d is not %u-byte aligned", gmem, lane.block_id,
         lane.thread_id, BYTES);
  copy(smem, pred ? gmem : nullptr, BYTES);
}

template <uint32_t BYTES>
inline void cp_async_part(void* smem, const void* gmem, int bytes) {
  Lane& lane = self();
  check_shared(lane, smem, BYTES, "cp_async destination");
  if (bytes < 0 || bytes > static_cast<int>(BYTES) || reinterpret_cast<uintptr_t>(gmem) % BYTES != 0)
    fail("cp_async of %d bytes from %p of block %d thread %d", bytes, gmem, lane.block_id,
         lane.thread_id);
  const uint32_t part = static_cast<uint32_t>(bytes);
  if (part > 0) copy(smem, gmem, part);
  if (part < BYTES) copy(static_cast<unsigned char*>(smem) + part, nullptr, BYTES - part);
}

// Makes the oldest pending copy or arrival happen.
inline void land(Copies& q) {
  const Copy& c = q.ring[q.head++ & q.mask];
  if (c.bytes == 0) --q.arrivals, landed(c.to);
  else write(q, c.to, c.from, c.bytes);
}

// Whether the copies that are issued from now on happen at once.
inline void choose_early(Copies& q) {
  if (q.random == 0) return;
  q.random ^= q.random << 13, q.random ^= q.random >> 17, q.random ^= q.random << 5;
  q.early = (q.random & 3) == 0;
}

}  // namespace emulate

inline void cp_async_16(void* smem, const void* gmem, bool pred = true) {
  emulate::cp_async<16>(smem, gmem, pred);
}
inline void cp_async_line_16(void* smem, const void* gmem, bool pred = true) {
  cp_async_16(smem, gmem, pred);
}
inline void cp_async_part_16(void* smem, const void* gmem, int bytes) {
  emulate::cp_async_part<16>(smem, gmem, bytes);
}
inline void cp_async_stream_16(void* smem, const void* gmem, bool pred = true) {
  emulate::cp_async<16>(smem, gmem, pred, true);
}
inline void cp_async_stream_8(void* smem, const void* gmem, bool pred = true) {
  emulate::cp_async<8>(smem, gmem, pred, true);
}
inline void cp_async_stream_4(void* smem, const void* gmem, bool pred = true) {
  emulate::cp_async<4>(smem, gmem, pred, true);
}
inline void cp_async_8(void* smem, const void* gmem, bool pred = true) {
  emulate::cp_async<8>(smem, gmem, pred);
}
inline void cp_async_4(void* smem, const void* gmem, bool pred = true) {
  emulate::cp_async<4>(smem, gmem, pred);
}

inline void cp_async_commit() {
  emulate::Copies& q = *emulate::self().copies;
  ++q.groups;
  emulate::choose_early(q);
}

template <int N>
inline void cp_async_wait() {
  emulate::Copies& q = *emulate::self().copies;
  while (q.head != q.tail) {
    if (q.groups - q.ring[q.head & q.mask].group <= N) break;  // of the N newest, or uncommitted
    emulate::land(q);
  }
}

#define JM_LDMATRIX(NAME, N)                                            \
  inline void NAME(uint32_t (&r)[N], const void* smem_row) {            \
    emulate::check_shared(emulate::self(), smem_row, 16, #NAME " row"); \
    emulate::Ldmatrix arg = {smem_row, r};                              \
    emulate::collective(&arg, emulate::NAME, #NAME);                    \
  }
JM_LDMATRIX(ldmatrix_x4, 4)
JM_LDMATRIX(ldmatrix_x4_trans, 4)
JM_LDMATRIX(ldmatrix_x2, 2)
JM_LDMATRIX(ldmatrix_x2_trans, 2)
#undef JM_LDMATRIX

#define JM_MMA(ONE, TILES, COMPUTE)                                                            \
  inline void ONE(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {             \
    emulate::Mma arg = {d, a, b, 1, 1};                                                        \
    emulate::collective(&arg, emulate::COMPUTE, #ONE);                                         \
  }                                                                                            \
  template <int MT, int NT>                                                                    \
  inline void TILES(float (&d)[MT][NT][4], const uint32_t (&a)[MT][4],                         \
                    const uint32_t (&b)[NT][2]) {                                              \
    emulate::Mma arg = {&d[0][0][0], &a[0][0], &b[0][0], MT, NT};                              \
    emulate::collective(&arg, emulate::COMPUTE, #ONE);                                         \
  }
JM_MMA(mma_m16n8k16_bf16, mma_tiles_bf16, mma_bf16)
JM_MMA(mma_m16n8k16_f16, mma_tiles_f16, mma_f16)
JM_MMA(mma_m16n8k8_tf32, mma_tiles_tf32, mma_tf32)
#undef JM_MMA

namespace emulate {
template <class T>
constexpr int mma_format = T::MMA;  // of the types that elements.cuh declares
template <>
inline constexpr int mma_format<int8_t> = MMA_S8;
template <>
inline constexpr int mma_format<uint8_t> = MMA_U8;
}  // namespace emulate

template <class A, class B, class Acc, int MT, int NT>
inline void mma_tiles_bytes(Acc (&d)[MT][NT][4], const uint32_t (&a)[MT][4],
                            const uint32_t (&b)[NT][2]) {
  emulate::Mma arg = {&d[0][0][0], &a[0][0], &b[0][0], MT, NT,
                      emulate::mma_format<A>, emulate::mma_format<B>};
  emulate::collective(&arg, emulate::mma_bytes, "mma_m16n8k32");
}

template <class A, class B, class Acc>
inline void mma_m16n8k32(Acc (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulate::Mma arg = {d, a, b, 1, 1, emulate::mma_format<A>, emulate::mma_format<B>};
  emulate::collective(&arg, emulate::mma_bytes, "mma_m16n8k32");
}

inline uint32_t byte_permute(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = low | static_cast<uint64_t>(high) << 32;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i)
    out |= static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return out;
}

inline uint32_t to_tf32(float x) {
  const uint32_t bits = emulate::float_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffffffu;
  return (bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu;
}
inline void emulate::round_tf32(void* to, const void* from, uint32_t bytes) {
  float x[4];
  uint32_t rounded[4];
  memcpy(x, from, bytes);
  for (uint32_t i = 0; i < bytes / 4; ++i) rounded[i] = to_tf32(x[i]);
  memcpy(to, rounded, bytes);
}

#define JM_LOAD(NAME)                                                                   \
  template <class T>                                                                    \
  inline T NAME(const T* p) {                                                           \
    if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0)                                \
      emulate::fail(#NAME ": %p is not %zu-byte aligned", static_cast<const void*>(p), sizeof(T)); \
    T x;                                                                                \
    memcpy(&x, p, sizeof(T));                                                           \
    return x;                                                                           \
  }
JM_LOAD(ld_global)
JM_LOAD(ld_nc)
JM_LOAD(ld_stream)
JM_LOAD(ld_coherent)
#undef JM_LOAD

template <class T>
inline T ld_global_if(const T* p, bool there, T otherwise) {
  static_assert(sizeof(T) >= 4, "loads are of 4, 8 or 16 bytes");
  return there ? ld_global(p) : otherwise;
}
template <class T>
inline uint32_t ld_global_if_small(const T* p, bool there, uint32_t otherwise) {
  static_assert(sizeof(T) <= 2, "1 or 2 bytes");
  return there ? ld_global(p) : otherwise;
}

template <class T>
inline void expect_aligned(const T* p, const char* what) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0)
    emulate::fail("%s: %p is not %zu-byte aligned", what, static_cast<const void*>(p), sizeof(T));
}

template <class T>
inline void st_global(T* p, T x) {
  expect_aligned(p, "st_global");
  memcpy(p, &x, sizeof(T));
}
template <class T>
inline void st_global_whole(T* p, T value) {
  st_global(p, value);
}
template <class T>
inline void st_global_if(T* p, T value, bool wanted) {
  if (wanted) st_global(p, value);
}
template <class T>
inline void st_stream(T* p, T x) {
  st_global(p, x);
}
inline void prefetch_l1(const void* p) {  // what is requested must be there
  (void)*static_cast<const volatile char*>(p);
}
inline void prefetch_l2(const void*) {}

template <class T>
inline T ld_acquire_gpu(const T* p) {
  T x;
  __atomic_load(const_cast<T*>(p), &x, __ATOMIC_ACQUIRE);
  return x;
}
// Of 16 bytes, word by word: nothing is promised of the whole.
template <class T>
inline T ld_relaxed_gpu(const T* p) {
  expect_aligned(p, "ld_relaxed_gpu");
  T x;
  if constexpr (sizeof(T) == 16) {
    uint32_t words[4];
    for (int i = 0; i < 4; ++i)
      words[i] = __atomic_load_n(reinterpret_cast<const uint32_t*>(p) + i, __ATOMIC_RELAXED);
    memcpy(&x, words, sizeof x);
  } else {
    __atomic_load(const_cast<T*>(p), &x, __ATOMIC_RELAXED);
  }
  return x;
}
template <class T>
inline void st_release_gpu(T* p, T x) {
  __atomic_store(p, &x, __ATOMIC_RELEASE);
}
template <class T>
inline void st_relaxed_gpu(T* p, T x) {
  expect_aligned(p, "st_relaxed_gpu");
  if constexpr (sizeof(T) == 16) {
    uint32_t words[4];
    memcpy(words, &x, sizeof x);
    for (int i = 0; i < 4; ++i)
      __atomic_store_n(reinterpret_cast<uint32_t*>(p) + i, words[i], __ATOMIC_RELAXED);
  } else {
    __atomic_store(p, &x, __ATOMIC_RELAXED);
  }
}
template <class T>
inline T ld_relaxed_gpu_2x64(const T* p) {
  static_assert(sizeof(T) == 16, "");
  expect_aligned(p, "ld_relaxed_gpu_2x64");
  uint64_t words[2];
  for (int i = 0; i < 2; ++i)
    words[i] = __atomic_load_n(reinterpret_cast<const uint64_t*>(p) + i, __ATOMIC_RELAXED);
  T x;
  memcpy(&x, words, sizeof x);
  return x;
}
template <class T>
inline void st_relaxed_gpu_2x64(T* p, T x) {
  static_assert(sizeof(T) == 16, "");
  expect_aligned(p, "st_relaxed_gpu_2x64");
  uint64_t words[2];
  memcpy(words, &x, sizeof x);
  for (int i = 0; i < 2; ++i)
    __atomic_store_n(reinterpret_cast<uint64_t*>(p) + i, words[i], __ATOMIC_RELAXED);
}
inline uint32_t atom_add_acq_rel_gpu(uint32_t* p, uint32_t n) {
  return __atomic_fetch_add(p, n, __ATOMIC_ACQ_REL);
}
inline void red_add_release_gpu(uint32_t* p, uint32_t n) {
  __atomic_fetch_add(p, n, __ATOMIC_RELEASE);
}

template <class T>
inline T atom_cas(T* p, T expected, T desired) {
  __atomic_compare_exchange(p, &expected, &desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <class T, class F>
inline void red(T* p, const F& f) {
  T old, made;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  do made = static_cast<T>(f(old));
  while (!__atomic_compare_exchange(p, &old, &made, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}
template <class T>
inline void red_add(T* p, T x) {
  red(p, [&](T old) { return old + x; });
}
inline void red_add_4(float* p, float x, float y, float z, float w) {
  expect_aligned(reinterpret_cast<const float(*)[4]>(p), "red_add_4");
  red_add(p, x), red_add(p + 1, y), red_add(p + 2, z), red_add(p + 3, w);
}
template <class T>
inline void red_max(T* p, T x) {
  red(p, [&](T old) { return old < x ? x : old; });
}
template <class T>
inline void red_min(T* p, T x) {
  red(p, [&](T old) { return x < old ? x : old; });
}

inline void fence_acq_rel_gpu() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void nanosleep(uint32_t) { emulate::pause("nanosleep"); }
inline void launch_order() {}  // launches run one at a time

}  // namespace jaxmono
