// An epilogue's source operand (CUTLASS's C: a residual, a factor of every element), which producers
// bring through the ring, behind the operands of the products.
//
//   producers: k tiles... | chunks 0, 1 | chunks 2, 3 | k tiles of the next task...
//   consumers: products     wait, chunk 0, chunk 1, release, wait, chunk 2, ...
//
// A chunk is what the epilogue stages at a time (staged_rows.cuh), of all rows of the tile. Loaded where it
// is added, by the consumers, it is some pieces in flight, and a wait for each.
#pragma once
#include "jaxmono/opaque.cuh"
#include "jaxmono/roles.cuh"
#include "jaxmono/swizzled_tile.cuh"
#include "jaxmono/vec.cuh"

namespace jaxmono {

// What an epilogue reads of a source, where it has none.
struct NoSource {
  JM_DEVICE void begin(int) const {}
  JM_DEVICE void end(int) const {}
};

// U: elements of 16 bits. ROWS: of the output tile; its columns are SHARES times CHUNKS chunks of CHUNK
// columns: a share is what a warpgroup finishes, or all.
template <class U, int ROWS, int CHUNK, int CHUNKS, int SHARES, int SLOT_BYTES, int SLOTS>
struct SourceTiles {
  using Tile = SwizzledTile<U, ROWS, CHUNK>;
  static constexpr int ALL = CHUNKS * SHARES, FIT = SLOT_BYTES / Tile::BYTES;
  static_assert(sizeof(U) == 2 && FIT > 0, "a chunk fits a slot");
  // Chunks of a slot: as many in each, so that the first slot is soon free for the next task.
  static constexpr int LEAST = (ALL + FIT - 1) / FIT, PER = (ALL + LEAST - 1) / LEAST;
  static constexpr int GROUPS = (ALL + PER - 1) / PER;

  // Producers: all chunks of the tile at (row0, col0), those of the shares in turn. ring: slot 0.
  template <class Load>
  JM_DEVICE static void produce(unsigned char* ring, Roles* roles, Place& at, int row0, int col0,
                                const Load& load) {
    const int thread = thread_id() - CONSUMERS;
#pragma unroll 1
    for (int q = 0; q < ALL; q += PER) {
      mbarrier_wait(&roles->empty[at.slot], at.parity() ^ 1);
#pragma unroll 1
      for (int i = q; i < q + PER && i < ALL; ++i)
        Tile::template fill<PRODUCERS>(ring + at.slot * SLOT_BYTES + (i - q) * Tile::BYTES, thread, row0,
                                       col0 + (i % SHARES * CHUNKS + i / SHARES) * CHUNK, load);
      cp_async_mbarrier_arrive(&roles->full[at.slot]);
      at.template next<SLOTS>();
    }
  }

  // Consumers: one chunk after the other, each between `begin` and `end`.
  struct Reader {
    unsigned char* ring;
    Roles* roles;
    Place& at;
    int share, row;  // which one this warpgroup finishes; the first row of this warp
    int first, landed = 0, left = 0;  // slots: number of the first; those waited for; those given back
    unsigned char* tile = nullptr;

    JM_DEVICE Reader(unsigned char* ring_, Roles* roles_, Place& at_, int share_, int row_)
        : ring(ring_), roles(roles_), at(at_), share(opaque(share_)), row(opaque(row_)), first(at_.slot) {}

    JM_DEVICE void begin(int chunk) {
      const int q = chunk * SHARES + share;
      await(q / PER + 1);
      tile = ring + (first + q / PER) % SLOTS * SLOT_BYTES + q % PER * Tile::BYTES;
    }
    // LANES neighbouring elements at row r of the warp and column c of the chunk.
    template <int LANES>
    JM_DEVICE Vec<U, LANES> get(int r, int c) const {
      return load<U, LANES>(Tile::at(tile, row + r, c));
    }
    JM_DEVICE void end(int chunk) {
      const int passed = chunk + 1 == CHUNKS ? GROUPS : (chunk + 1) * SHARES / PER;
      if (left == passed) return;
      await(passed);  // those of the other share, too
      named_barrier(SOURCE_BARRIER + warp_id() / 4, 128);
#pragma unroll 1
      for (; left < passed; ++left)
        if (speaks_for_warpgroup()) mbarrier_arrive(&roles->empty[(first + left) % SLOTS]);
    }

   private:
    JM_DEVICE void await(int groups) {
#pragma unroll 1
      for (; landed < groups; ++landed) {
        mbarrier_wait(&roles->full[at.slot], at.parity());
        at.template next<SLOTS>();
      }
    }
  };
};

}  // namespace jaxmono
