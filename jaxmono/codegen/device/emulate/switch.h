// The context switch between fibers: x86-64, System V. About ten instructions and no system call.
#pragma once
#include <stdint.h>

#if !defined(__x86_64__)
#error "jaxmono's interpreter needs x86-64: its fibers switch stacks in assembly"
#endif

extern "C" __attribute__((visibility("hidden"))) void jaxmono_switch(void** save, void* to);

// `jmp` and not `ret`: the target is that of the last switch at this place, which the branch
// predictor knows, whereas the return stack belongs to another fiber.
__asm__(R"(
.text
.p2align 4
.hidden jaxmono_switch
.globl jaxmono_switch
.type jaxmono_switch, @function
jaxmono_switch:
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
.size jaxmono_switch, .-jaxmono_switch
)");

namespace jaxmono::emulate {

// Makes a stack that ends at `top` look as if `entry` were about to be called on it.
inline void* fresh_stack(void* top, void (*entry)()) {
  auto* sp = static_cast<uint64_t*>(top);
  *--sp = 0;  // the return address of entry, which never returns; entry sees sp % 16 == 8
  *--sp = reinterpret_cast<uint64_t>(entry);
  for (int i = 0; i < 6; ++i) *--sp = 0;
  return sp;
}

}  // namespace jaxmono::emulate
