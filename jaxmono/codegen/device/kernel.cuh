// What the generated kernel itself uses: buffer references, file-scope storage, where tasks begin.
#pragma once
#include "jaxmono/platform.cuh"
#include "jaxmono/sync.cuh"

// Tables begin as vectors do that are read of them.
#ifdef JAXMONO_EMULATE
#define JM_TABLE alignas(16) static const
#define JM_CONSTANT static const
#define JM_STATE static
#else
#define JM_TABLE alignas(16) static __device__ const
#define JM_CONSTANT static __constant__ const
#define JM_STATE static __device__
#endif

namespace jaxmono {

// A buffer: pointer number `buf` of the kernel's parameters, `offset` units of 16 bytes further.
struct Reference {
  unsigned buf;
  unsigned offset;
};

template <class T>
JM_DEVICE T* pointer(void* const* buf, Reference r) {
  return reinterpret_cast<T*>(static_cast<unsigned char*>(buf[r.buf]) + 16ll * r.offset);
}
template <class T>
JM_DEVICE T* pointer(void* base, long long bytes = 0) {
  return reinterpret_cast<T*>(static_cast<unsigned char*>(base) + bytes);
}

// The first task of a block in the next stage. Behind a stage that leaves blocks idle, tasks begin at the
// block behind its own: those have fetched weights meanwhile (on an H200 the decode step of T5-base takes
// 14 % less time so, of OPT-125M 3 %).
JM_DEVICE int next_own(int own, int tasks) {
  if (4 * tasks > 3 * num_blocks()) return own;
  own -= tasks;
  return own < 0 ? own + num_blocks() : own;
}

// Zero at load; afterwards whoever uses them keeps them usable for the next launch.
#ifdef JAXMONO_EMULATE
template <int N>
struct Counters : emulate::ModuleState {
  uint32_t count[N] = {};
  Counters() : ModuleState(count, sizeof count) {}
};
#else
template <int N>
struct Counters {
  uint32_t count[N];
};
#endif

}  // namespace jaxmono
