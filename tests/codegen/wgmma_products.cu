// Block i: one case of test_wgmma.py's CASES, y [64][N] = a b with K = 128, by one warpgroup. The
// operands are stored as their layout says and written to shared memory by ordinary stores.
#include "jaxmono/ptx.cuh"
#include "jaxmono/ptx_mbarrier.cuh"
#include "jaxmono/ptx_wgmma.cuh"
#include "jaxmono/warp.cuh"
using namespace jaxmono;

constexpr int K = 128;
struct Params {
  void* buf[3];  // a: [cases][64 * K], b: [cases][256 * K], y: [cases][64 * 256]
};

JM_CALLED void fill(unsigned char* tile, const void* from, int rows, int cols) {
  const auto* in = static_cast<const Bits128*>(from);
  for (int i = thread_id(); i < rows * (cols / 8); i += 128) {
    const int r = i / (cols / 8), p = i % (cols / 8);
    *reinterpret_cast<Bits128*>(tile + p / 8 * rows * 128 + r * 128 + ((p ^ r) & 7) * 16) = in[i];
  }
}

template <class T, bool A_MN, bool B_MN, int N>
JM_DEVICE void product(const Params& params) {
  unsigned char* const a = dynamic_shared();
  unsigned char* const b = a + 64 * K * 2;
  const auto* from_a = static_cast<const uint16_t*>(params.buf[0]) + block_id() * 64 * K;
  const auto* from_b = static_cast<const uint16_t*>(params.buf[1]) + block_id() * 256 * K;
  fill(a, from_a, A_MN ? K : 64, A_MN ? 64 : K);
  fill(b, from_b, B_MN ? K : N, B_MN ? N : K);
  fence_proxy_async();
  syncthreads();
  float acc[N / 8][4];
#pragma unroll
  for (int j = 0; j < N / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) acc[j][e] = 0.5f;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < K; k += 16) {
    const uint64_t x = A_MN ? wgmma_descriptor(a + k * 128, K * 128, 1024)
                            : wgmma_descriptor(a + k / 64 * 64 * 128 + k % 64 * 2, 16, 1024);
    const uint64_t y = B_MN ? wgmma_descriptor(b + k * 128, K * 128, 1024)
                            : wgmma_descriptor(b + k / 64 * N * 128 + k % 64 * 2, 16, 1024);
    wgmma<T, A_MN, B_MN>(acc, x, y);
  }
  wgmma_commit();
  wgmma_wait<0>();
  float* const y = static_cast<float*>(params.buf[2]) + block_id() * 64 * 256;
  const int row = warp_id() * 16 + lane_id() / 4, col = lane_id() % 4 * 2;
#pragma unroll
  for (int j = 0; j < N / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) y[(row + e / 2 * 8) * N + j * 8 + col + e % 2] = acc[j][e];
}

extern "C" __global__ void __launch_bounds__(128, 1) test_kernel(const __grid_constant__ Params p) {
  switch (block_id()) {
#define CASE(I, T, A_MN, B_MN, N) \
  case I: return product<T, A_MN, B_MN, N>(p);
    CASES
  }
}
