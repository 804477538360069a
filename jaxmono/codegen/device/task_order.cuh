// Tasks of different lengths, dealt to blocks so that each gets about as much.
#pragma once
#include "jaxmono/platform.cuh"

namespace jaxmono {

// Which of so many tasks, the longest first, is this block's: blocks take turns back and forth, so that
// who had a long one gets a short one next. Blocks that have a task less begin with the longest.
JM_DEVICE int snake(int task, int tasks) {
  const int blocks = num_blocks(), round = task / blocks, at = task % blocks;
  const int forth = (round + 1) * blocks > tasks ? at : (at + blocks - tasks % blocks) % blocks;
  const int count = tasks - round * blocks < blocks ? tasks - round * blocks : blocks;
  return round * blocks + (round % 2 ? count - 1 - forth : forth);
}

// The same where batch entries must stay together, for their keys do not fit L2: the place of the task
// in an order of `width` tiles a batch entry, the longest first. A block's tasks are pairs of a long tile
// and the short one that makes up for it (of two entries if width is odd; their number is even then).
// Blocks that have a task less begin with a long one or have a short one.
JM_DEVICE int fold(int task, int tasks, int width) {
  const int blocks = num_blocks(), pairs = tasks / 2, whole = pairs / blocks * blocks;
  int pair = task / blocks / 2 * blocks + task % blocks;
  bool second = task / blocks % 2 != 0;
  if (task >= 2 * whole) {  // less than a pair for every block
    const int i = task - 2 * whole, rest = pairs - whole;
    second = i >= rest;
    pair = whole + (!second ? i : i >= blocks ? i - blocks : i - rest + (2 * rest > blocks ? 2 * rest - blocks : 0));
  }
  const int n = width % 2 ? 2 * width : width, at = pair % (n / 2);
  return pair / (n / 2) * n + (second ? n - 1 - at : at);
}

}  // namespace jaxmono
