// Requests of weights into the L2, for a later stage (codegen/touch.py).
#pragma once
#include "jaxmono/ptx.cuh"

namespace jaxmono {

// Chunks first .. last of `total`, which lie evenly in the BYTES at p, by all blocks together.
template <int CHUNK, int THREADS>
JM_DEVICE void touch_l2(const void* p, long long bytes, int first, int last, int total) {
  constexpr int LINE = 128, LINES = CHUNK / LINE;
  const int chunks = static_cast<int>(bytes / CHUNK);
  for (int i = block_id() * THREADS + thread_id(); i < (last - first) * LINES;
       i += num_blocks() * THREADS) {
    const long long chunk = static_cast<long long>(first + i / LINES) * chunks / total;
    prefetch_l2(static_cast<const unsigned char*>(p) + chunk * CHUNK + i % LINES * LINE);
  }
}

}  // namespace jaxmono
