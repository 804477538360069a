// What a compiler must not know of a value, where what it would make of it costs registers or time.
#pragma once
#include "jaxmono/platform.cuh"

namespace jaxmono {

// The same pointer, of which the compiler does not know how it was made: sums with it stay sums with it
// (two instructions each; it would add their parts in another order, with four).
template <class T>
JM_DEVICE T* opaque(T* p) {
#ifndef JAXMONO_EMULATE
  asm("" : "+l"(p));
#endif
  return p;
}

// The same number, which is found again each time: the compiler would keep what a stage makes of a
// thread's number from one stage to the next, in registers that others lack.
JM_DEVICE int opaque(int x) {
#ifndef JAXMONO_EMULATE
  asm volatile("" : "+r"(x));
#endif
  return x;
}

// The same number, which is there from here on: the compiler would make it where it is used, behind a
// barrier that is waited for anyway.
JM_DEVICE float made(float x) {
#ifndef JAXMONO_EMULATE
  asm volatile("" : "+f"(x));
#endif
  return x;
}

// x, which a source that defines JM_WIDE_TILES finds again each time, as it does the block's number and the
// grid's size: a thread with 128 sums and more has no registers for what is made of either once for all stages
// and barriers. CLIP b32 reloaded spilled words at 97 places, ViT-B/16 b32 at 10; GoogLeNet b32 kept the grid's
// size in eleven spilled words. Others have the registers, and would wait for it behind each grid barrier. Of
// whether it is thread 0 ptxas keeps a bit through the whole kernel, in a word that it spills (a training step
// of DIEN: 24 bytes). Not negative.
JM_DEVICE int fresh(int x) {
#if defined(JM_WIDE_TILES) && !defined(JAXMONO_EMULATE)
  x = opaque(x);
  __builtin_assume(x >= 0);  // divisions by powers of two stay shifts
#endif
  return x;
}

// Never holds: a grid is one row of blocks. Neither compiler knows that, so nothing that is read behind
// `if (never<N>()) break;` is asked for in front of it. Each N below 15 is a test of its own: of one that is
// known not to hold a compiler may take out the next.
template <int N>
JM_DEVICE bool never() {
#ifdef JAXMONO_EMULATE
  return false;
#else
  unsigned rows;
  asm("mov.u32 %0, %%nctaid.y;" : "=r"(rows));
  return rows & 2u << N % 15;
#endif
}

// Of `count` copies that a producer requests, each behind a test of its own: how many between two branches.
// In a source that defines JM_LEAN their seven predicates suffice. Further ones ptxas keeps as bits
// of one word, which has the same register in all of a kernel, called functions included. Where producers
// have such bits it is one of their 88, and none that a function called by consumers uses, or their sums. If
// there is no such register, every use of the word goes to memory, the consumers' as well (a training step
// of wav2vec2 with 149 rows: 20 stores and 20 loads, 80 bytes). If producers have none, it is R104 there.
// Others request all at once: a loop has more to do.
constexpr int at_once(int count) {
#ifdef JM_LEAN
  return count < 4 ? count : 4;
#else
  return count;
#endif
}

// 0, in kernels with producers as if it were another number in each task: what is made of it is not kept
// from one task to the next. They have a task or two of a stage of rows, for which ptxas kept all that the
// rows share, a normalisation's scale and offset (BERT-base b32: 80 bytes of it spilled).
JM_DEVICE int of_this(int task) {
#ifdef JM_TEAM
  return opaque(task) >> 30;
#else
  (void)task;
  return 0;
#endif
}

}  // namespace jaxmono
