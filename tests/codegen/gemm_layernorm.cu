// out[M][N] (f32) = LayerNorm(x[M][K] w1[K][N]) w2[N][N], bf16 operands, in three stages with grid
// barriers between them. Hand-written: it exercises the device headers as generated code does.
#include "jaxmono/numeric.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/sync.cuh"

using namespace jaxmono;

#ifndef SIZES
#define SIZES 128, 96, 128
#endif

constexpr int MKN[3] = {SIZES};
constexpr int M = MKN[0], K = MKN[1], N = MKN[2];
constexpr int THREADS = 128, BM = 64, BN = 64, BK = 32, STAGES = 3;
constexpr int PITCH_A = BK + 8, PITCH_B = BN + 8;  // elements; rows in different banks
constexpr int A_BYTES = BM * PITCH_A * 2, STAGE_BYTES = A_BYTES + BK * PITCH_B * 2;
constexpr int SHARED_BYTES = STAGES * STAGE_BYTES;

struct Params {
  void* buf[7];  // x, w1, gamma, beta, w2, out, scratch (h then y)
};

__device__ GridBarrier grid;

struct Add {
  JM_DEVICE float operator()(float a, float b) const { return a + b; }
};

JM_DEVICE void fetch(unsigned char* slot, const bf16* a, const bf16* b, int depth, int row0, int col0,
                     int k0) {
  for (int i = thread_id(); i < BM * BK / 8; i += THREADS) {
    const int r = i / (BK / 8), c = i % (BK / 8) * 8;
    cp_async_16(slot + (r * PITCH_A + c) * 2, a + (row0 + r) * depth + k0 + c, row0 + r < M);
  }
  for (int i = thread_id(); i < BK * BN / 8; i += THREADS) {
    const int r = i / (BN / 8), c = i % (BN / 8) * 8;
    cp_async_16(slot + A_BYTES + (r * PITCH_B + c) * 2, b + (k0 + r) * N + col0 + c);
  }
}

template <class Store>
JM_DEVICE void gemm_tile(const bf16* a, const bf16* b, int depth, int row0, int col0,
                         const Store& store) {
  unsigned char* smem = dynamic_shared();
  const int lane = lane_id(), warp = warp_id(), mat = lane / 8;
  const int wr = warp / 2 * 32, wc = warp % 2 * 32, tiles = depth / BK;
  float acc[2][4][4] = {};
  for (int t = 0; t < STAGES - 1; ++t) {
    if (t < tiles) fetch(smem + t * STAGE_BYTES, a, b, depth, row0, col0, t * BK);
    cp_async_commit();
  }
  for (int t = 0; t < tiles; ++t) {
    cp_async_wait<STAGES - 2>();  // TILE LANDED
    syncthreads();                // TILE VISIBLE
    const int next = t + STAGES - 1;
    if (next < tiles) fetch(smem + next % STAGES * STAGE_BYTES, a, b, depth, row0, col0, next * BK);
    cp_async_commit();
    const unsigned char* sa = smem + t % STAGES * STAGE_BYTES;
    const unsigned char* sb = sa + A_BYTES;
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      uint32_t fa[2][4], fb[4][2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        ldmatrix_x4(fa[i], sa + ((wr + i * 16 + lane % 16) * PITCH_A + k + lane / 16 * 8) * 2);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        uint32_t r[4];
        ldmatrix_x4_trans(r, sb + ((k + mat % 2 * 8 + lane % 8) * PITCH_B + wc + j * 8 + mat / 2 * 8) * 2);
        fb[j][0] = r[0], fb[j][1] = r[1], fb[j + 1][0] = r[2], fb[j + 1][1] = r[3];
      }
#ifdef ONE_BY_ONE
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_m16n8k16_bf16(acc[i][j], fa[i], fb[j]);
#else
      mma_tiles_bf16(acc, fa, fb);
#endif
    }
  }
  cp_async_wait<0>();
  syncthreads();  // RING FREE
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        store(row0 + wr + i * 16 + lane / 4 + h * 8, col0 + wc + j * 8 + lane % 4 * 2,
              acc[i][j][2 * h], acc[i][j][2 * h + 1]);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) test_kernel(const __grid_constant__ Params p) {
  const auto* x = static_cast<const bf16*>(p.buf[0]);
  const auto* w1 = static_cast<const bf16*>(p.buf[1]);
  const auto* gamma = static_cast<const float*>(p.buf[2]);
  const auto* beta = static_cast<const float*>(p.buf[3]);
  const auto* w2 = static_cast<const bf16*>(p.buf[4]);
  auto* out = static_cast<float*>(p.buf[5]);
  auto* h = static_cast<float*>(p.buf[6]);
  auto* y = reinterpret_cast<bf16*>(h + M * N);
  constexpr int TILES_N = N / BN, TILES = (M + BM - 1) / BM * TILES_N;

  for (int t = block_id(); t < TILES; t += num_blocks())
    gemm_tile(x, w1, K, t / TILES_N * BM, t % TILES_N * BN, [&](int r, int c, float u, float v) {
      if (r < M) h[r * N + c] = u, h[r * N + c + 1] = v;
    });
  grid_barrier(&grid);  // H WRITTEN

  for (int r = block_id(); r < M; r += num_blocks()) {
    float sum = 0, squares = 0;
    for (int c = thread_id(); c < N; c += THREADS) {
      const float v = ld_coherent(h + r * N + c);
      sum += v, squares += v * v;
    }
    const float mean = block_reduce(sum, Add{}, dynamic_shared()) / N;
    const float variance = block_reduce(squares, Add{}, dynamic_shared()) / N - mean * mean;
    const float scale = op_rsqrt(variance + 1e-5f);
    for (int c = thread_id(); c < N; c += THREADS)
      y[r * N + c] = convert<bf16>((h[r * N + c] - mean) * scale * gamma[c] + beta[c]);
  }
  grid_barrier(&grid);  // Y WRITTEN

  for (int t = block_id(); t < TILES; t += num_blocks())
    gemm_tile(y, w2, N, t / TILES_N * BM, t % TILES_N * BN, [&](int r, int c, float u, float v) {
      if (r < M) out[r * N + c] = u, out[r * N + c + 1] = v;
    });
}

#ifdef JAXMONO_EMULATE
JAXMONO_EMULATE_MAIN(test_kernel, Params, 7, THREADS, SHARED_BYTES)
#endif
