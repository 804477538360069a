// Global loads, stores, atomics and fences on the GPU; see ptx.cuh for the list.
#pragma once
#include "jaxmono/types.cuh"

namespace jaxmono {

// One load instruction for every size. u8 goes through a 32-bit register.
//
// `volatile` although nothing writes what ld_stream reads: the compiler takes an asm that is not for
// arithmetic, and moves it in front of the test that guards it.
#define JM_LOAD(NAME, OP, CLOBBER)                                                         \
  template <class T>                                                                       \
  JM_DEVICE T NAME(const T* p) {                                                           \
    if constexpr (sizeof(T) == 16) {                                                       \
      Bits128 x;                                                                           \
      asm volatile("ld." OP ".v4.u32 {%0, %1, %2, %3}, [%4];"                              \
                   : "=r"(x.x[0]), "=r"(x.x[1]), "=r"(x.x[2]), "=r"(x.x[3])                \
                   : "l"(p)                                                                \
                   : CLOBBER);                                                             \
      return bitcast<T>(x);                                                                \
    } else if constexpr (sizeof(T) == 8) {                                                 \
      uint64_t x;                                                                          \
      asm volatile("ld." OP ".u64 %0, [%1];" : "=l"(x) : "l"(p) : CLOBBER);                \
      return bitcast<T>(x);                                                                \
    } else if constexpr (sizeof(T) == 4) {                                                 \
      uint32_t x;                                                                          \
      asm volatile("ld." OP ".u32 %0, [%1];" : "=r"(x) : "l"(p) : CLOBBER);                \
      return bitcast<T>(x);                                                                \
    } else if constexpr (sizeof(T) == 2) {                                                 \
      uint16_t x;                                                                          \
      asm volatile("ld." OP ".u16 %0, [%1];" : "=h"(x) : "l"(p) : CLOBBER);                \
      return bitcast<T>(x);                                                                \
    } else {                                                                               \
      static_assert(sizeof(T) == 1, "loads are of 1, 2, 4, 8 or 16 bytes");                \
      uint32_t x;                                                                          \
      asm volatile("ld." OP ".u8 %0, [%1];" : "=r"(x) : "l"(p) : CLOBBER);                 \
      return bitcast<T>(static_cast<uint8_t>(x));                                          \
    }                                                                                      \
  }
JM_LOAD(ld_global, "global", "memory")
// An L2 policy would need a 32-byte load or a policy register.
JM_LOAD(ld_stream, "global.nc.L1::no_allocate", )
#undef JM_LOAD

// ld.global.nc. Nothing writes what it reads, so the compiler may move it, but not where it did not
// run: that is the difference between __ldg and an asm.
template <class T>
JM_DEVICE T ld_nc(const T* p) {
  if constexpr (sizeof(T) == 16) {
    const uint4 x = __ldg(reinterpret_cast<const uint4*>(p));
    return bitcast<T>(Bits128{{x.x, x.y, x.z, x.w}});
  } else if constexpr (sizeof(T) == 8) {
    return bitcast<T>(static_cast<uint64_t>(__ldg(reinterpret_cast<const unsigned long long*>(p))));
  } else if constexpr (sizeof(T) == 4) {
    return bitcast<T>(static_cast<uint32_t>(__ldg(reinterpret_cast<const unsigned int*>(p))));
  } else if constexpr (sizeof(T) == 2) {
    return bitcast<T>(static_cast<uint16_t>(__ldg(reinterpret_cast<const unsigned short*>(p))));
  } else {
    static_assert(sizeof(T) == 1, "loads are of 1, 2, 4, 8 or 16 bytes");
    return bitcast<T>(static_cast<uint8_t>(__ldg(reinterpret_cast<const unsigned char*>(p))));
  }
}

// Predicated: no branch that would make the next load wait for this one's. ld.global, so that the
// assembler leaves all of them in front of the stores that follow: it moves ld.global.nc behind them
// to save registers (4 of 16 in flight).
template <class T>
JM_DEVICE T ld_global_if(const T* p, bool there, T otherwise) {
  const uint32_t test = there;
  if constexpr (sizeof(T) == 16) {
    Bits128 x = bitcast<Bits128>(otherwise);
    asm volatile("{ .reg .pred q; setp.ne.u32 q, %5, 0; @q ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(x.x[0]), "+r"(x.x[1]), "+r"(x.x[2]), "+r"(x.x[3])
                 : "l"(p), "r"(test)
                 : "memory");
    return bitcast<T>(x);
  } else if constexpr (sizeof(T) == 8) {
    uint64_t x = bitcast<uint64_t>(otherwise);
    asm volatile("{ .reg .pred q; setp.ne.u32 q, %2, 0; @q ld.global.u64 %0, [%1]; }"
                 : "+l"(x)
                 : "l"(p), "r"(test)
                 : "memory");
    return bitcast<T>(x);
  } else {
    static_assert(sizeof(T) == 4, "loads are of 4, 8 or 16 bytes");
    uint32_t x = bitcast<uint32_t>(otherwise);
    asm volatile("{ .reg .pred q; setp.ne.u32 q, %2, 0; @q ld.global.u32 %0, [%1]; }"
                 : "+r"(x)
                 : "l"(p), "r"(test)
                 : "memory");
    return bitcast<T>(x);
  }
}

// The same for 1 and 2 bytes, which stay in the 32-bit register that they are loaded into: shifts
// and ors put four or two of them together.
template <class T>
JM_DEVICE uint32_t ld_global_if_small(const T* p, bool there, uint32_t otherwise) {
  static_assert(sizeof(T) <= 2, "1 or 2 bytes");
  const uint32_t test = there;
  uint32_t x = otherwise;
  if constexpr (sizeof(T) == 2)
    asm volatile("{ .reg .pred q; setp.ne.u32 q, %2, 0; @q ld.global.u16 %0, [%1]; }"
                 : "+r"(x)
                 : "l"(p), "r"(test)
                 : "memory");
  else
    asm volatile("{ .reg .pred q; setp.ne.u32 q, %2, 0; @q ld.global.u8 %0, [%1]; }"
                 : "+r"(x)
                 : "l"(p), "r"(test)
                 : "memory");
  return x;
}

template <class T>
JM_DEVICE T ld_coherent(const T* p) {
  // .cg reads L2; unlike ld.relaxed it has a 16-byte form on every architecture.
  if constexpr (sizeof(T) == 16) {
    Bits128 x;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x[0]), "=r"(x.x[1]), "=r"(x.x[2]), "=r"(x.x[3])
                 : "l"(p)
                 : "memory");
    return bitcast<T>(x);
  } else if constexpr (sizeof(T) == 8) {
    uint64_t x;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(p) : "memory");
    return bitcast<T>(x);
  } else if constexpr (sizeof(T) == 4) {
    uint32_t x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return bitcast<T>(x);
  } else if constexpr (sizeof(T) == 2) {
    uint16_t x;
    asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(x) : "l"(p) : "memory");
    return bitcast<T>(x);
  } else {
    static_assert(sizeof(T) == 1, "loads are of 1, 2, 4, 8 or 16 bytes");
    uint32_t x;
    asm volatile("ld.relaxed.gpu.global.u8 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return bitcast<T>(static_cast<uint8_t>(x));
  }
}

#define JM_STORE(NAME, OP)                                                                 \
  template <class T>                                                                       \
  JM_DEVICE void NAME(T* p, T value) {                                                     \
    if constexpr (sizeof(T) == 16) {                                                       \
      const Bits128 x = bitcast<Bits128>(value);                                           \
      asm volatile("st." OP ".v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(x.x[0]),       \
                   "r"(x.x[1]), "r"(x.x[2]), "r"(x.x[3])                                   \
                   : "memory");                                                            \
    } else if constexpr (sizeof(T) == 8) {                                                 \
      asm volatile("st." OP ".u64 [%0], %1;" ::"l"(p), "l"(bitcast<uint64_t>(value))       \
                   : "memory");                                                            \
    } else if constexpr (sizeof(T) == 4) {                                                 \
      asm volatile("st." OP ".u32 [%0], %1;" ::"l"(p), "r"(bitcast<uint32_t>(value))       \
                   : "memory");                                                            \
    } else if constexpr (sizeof(T) == 2) {                                                 \
      asm volatile("st." OP ".u16 [%0], %1;" ::"l"(p), "h"(bitcast<uint16_t>(value))       \
                   : "memory");                                                            \
    } else {                                                                               \
      static_assert(sizeof(T) == 1, "stores are of 1, 2, 4, 8 or 16 bytes");               \
      asm volatile("st." OP ".u8 [%0], %1;" ::"l"(p),                                      \
                   "r"(static_cast<uint32_t>(bitcast<uint8_t>(value)))                     \
                   : "memory");                                                            \
    }                                                                                      \
  }
JM_STORE(st_global, "global")
JM_STORE(st_stream, "global.cs")
#undef JM_STORE

// In one instruction. The compiler takes vectors apart and does not put all of them together again (of the
// epilogue of 65536 x 256 x 64 every second piece of 16 bytes left as four of 4, and it took 21 us of an H200). They
// do not tell that memory changes, so that loads of other elements stay where they are; barriers do. No group
// reads what it overwrites (fusion/verify.py), but for a buffer that it updates, of which it reads nothing else.
template <class T>
JM_DEVICE void st_global_whole(T* p, T value) {
  if constexpr (sizeof(T) == 16) {
    const Bits128 x = bitcast<Bits128>(value);
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(x.x[0]), "r"(x.x[1]), "r"(x.x[2]),
                 "r"(x.x[3]));
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("st.global.u64 [%0], %1;" ::"l"(p), "l"(bitcast<uint64_t>(value)));
  } else {
    static_assert(sizeof(T) == 4, "stores are of 4, 8 or 16 bytes");
    asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(bitcast<uint32_t>(value)));
  }
}

// The same, predicated, for what has its address and its value anyway: no branch that the compiler would move
// the work for the value into, with its loads.
template <class T>
JM_DEVICE void st_global_if(T* p, T value, bool wanted) {
  const uint32_t test = wanted;
  if constexpr (sizeof(T) == 16) {
    const Bits128 x = bitcast<Bits128>(value);
    asm volatile("{ .reg .pred q; setp.ne.u32 q, %5, 0; @q st.global.v4.u32 [%0], {%1, %2, %3, %4}; }" ::"l"(p),
                 "r"(x.x[0]), "r"(x.x[1]), "r"(x.x[2]), "r"(x.x[3]), "r"(test));
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("{ .reg .pred q; setp.ne.u32 q, %2, 0; @q st.global.u64 [%0], %1; }" ::"l"(p),
                 "l"(bitcast<uint64_t>(value)), "r"(test));
  } else {
    static_assert(sizeof(T) == 4, "stores are of 4, 8 or 16 bytes");
    asm volatile("{ .reg .pred q; setp.ne.u32 q, %2, 0; @q st.global.u32 [%0], %1; }" ::"l"(p),
                 "r"(bitcast<uint32_t>(value)), "r"(test));
  }
}

JM_DEVICE void prefetch_l1(const void* p) { asm volatile("prefetch.global.L1 [%0];" ::"l"(p)); }
JM_DEVICE void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

#define JM_SYNC_LOAD(NAME, OP)                                                             \
  template <class T>                                                                       \
  JM_DEVICE T NAME(const T* p) {                                                           \
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "4, 8 or 16 bytes"); \
    if constexpr (sizeof(T) == 16) {                                                       \
      Bits128 x;                                                                           \
      asm volatile("ld." OP ".gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"                   \
                   : "=r"(x.x[0]), "=r"(x.x[1]), "=r"(x.x[2]), "=r"(x.x[3])                \
                   : "l"(p)                                                                \
                   : "memory");                                                            \
      return bitcast<T>(x);                                                                \
    } else if constexpr (sizeof(T) == 8) {                                                 \
      uint64_t x;                                                                          \
      asm volatile("ld." OP ".gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(p) : "memory");    \
      return bitcast<T>(x);                                                                \
    } else {                                                                               \
      uint32_t x;                                                                          \
      asm volatile("ld." OP ".gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");    \
      return bitcast<T>(x);                                                                \
    }                                                                                      \
  }
JM_SYNC_LOAD(ld_acquire_gpu, "acquire")
JM_SYNC_LOAD(ld_relaxed_gpu, "relaxed")
#undef JM_SYNC_LOAD

#define JM_SYNC_STORE(NAME, OP)                                                            \
  template <class T>                                                                       \
  JM_DEVICE void NAME(T* p, T value) {                                                     \
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "4, 8 or 16 bytes"); \
    if constexpr (sizeof(T) == 16) {                                                       \
      const Bits128 x = bitcast<Bits128>(value);                                           \
      asm volatile("st." OP ".gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p),         \
                   "r"(x.x[0]), "r"(x.x[1]), "r"(x.x[2]), "r"(x.x[3])                      \
                   : "memory");                                                            \
    } else if constexpr (sizeof(T) == 8)                                                   \
      asm volatile("st." OP ".gpu.global.u64 [%0], %1;" ::"l"(p),                          \
                   "l"(bitcast<uint64_t>(value))                                           \
                   : "memory");                                                            \
    else                                                                                   \
      asm volatile("st." OP ".gpu.global.u32 [%0], %1;" ::"l"(p),                          \
                   "r"(bitcast<uint32_t>(value))                                           \
                   : "memory");                                                            \
  }
JM_SYNC_STORE(st_release_gpu, "release")
JM_SYNC_STORE(st_relaxed_gpu, "relaxed")
#undef JM_SYNC_STORE

// 16 bytes as two words of 8, neither of which tears.
struct alignas(16) Bits2x64 {
  uint64_t x[2];
};
template <class T>
JM_DEVICE T ld_relaxed_gpu_2x64(const T* p) {
  static_assert(sizeof(T) == 16, "");
  Bits2x64 x;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(x.x[0]), "=l"(x.x[1]) : "l"(p) : "memory");
  return bitcast<T>(x);
}
template <class T>
JM_DEVICE void st_relaxed_gpu_2x64(T* p, T value) {
  static_assert(sizeof(T) == 16, "");
  const Bits2x64 x = bitcast<Bits2x64>(value);
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(x.x[0]), "l"(x.x[1]) : "memory");
}

JM_DEVICE uint32_t atom_add_acq_rel_gpu(uint32_t* p, uint32_t n) {
  uint32_t old;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(p), "r"(n)
               : "memory");
  return old;
}

JM_DEVICE void red_add_release_gpu(uint32_t* p, uint32_t n) {
  asm volatile("red.add.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(n) : "memory");
}

template <class T>
JM_DEVICE void red_add(T* p, T x) {
  if constexpr (is_same<T, float>)
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(p), "f"(x) : "memory");
  else if constexpr (is_same<T, double>)
    asm volatile("red.relaxed.gpu.global.add.f64 [%0], %1;" ::"l"(p), "d"(x) : "memory");
  else if constexpr (sizeof(T) == 8)
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(bitcast<uint64_t>(x))
                 : "memory");
  else
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(bitcast<uint32_t>(x))
                 : "memory");
}

// p: a multiple of 16 bytes.
JM_DEVICE void red_add_4(float* p, float x, float y, float z, float w) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(x), "f"(y), "f"(z),
               "f"(w)
               : "memory");
#else
  red_add(p, x), red_add(p + 1, y), red_add(p + 2, z), red_add(p + 3, w);
#endif
}

template <class T>
JM_DEVICE void red_max(T* p, T x) {
  static_assert(sizeof(T) == 4 && is_integer<T>, "32-bit integers");
  if constexpr (is_signed<T>)
    asm volatile("red.relaxed.gpu.global.max.s32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
  else
    asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}
template <class T>
JM_DEVICE void red_min(T* p, T x) {
  static_assert(sizeof(T) == 4 && is_integer<T>, "32-bit integers");
  if constexpr (is_signed<T>)
    asm volatile("red.relaxed.gpu.global.min.s32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
  else
    asm volatile("red.relaxed.gpu.global.min.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}

template <class T>
JM_DEVICE T atom_cas(T* p, T expected, T desired) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "4 or 8 bytes");
  if constexpr (sizeof(T) == 8) {
    uint64_t old;
    asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"(bitcast<uint64_t>(expected)), "l"(bitcast<uint64_t>(desired))
                 : "memory");
    return bitcast<T>(old);
  } else {
    uint32_t old;
    asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(old)
                 : "l"(p), "r"(bitcast<uint32_t>(expected)), "r"(bitcast<uint32_t>(desired))
                 : "memory");
    return bitcast<T>(old);
  }
}

JM_DEVICE void fence_acq_rel_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
JM_DEVICE void nanosleep(uint32_t ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }
JM_DEVICE void launch_order() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace jaxmono
