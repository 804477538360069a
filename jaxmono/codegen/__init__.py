"""Plan to Program: readable CUDA C++ from a Plan and a Schedule, and the binary of it."""

from __future__ import annotations

from jaxmono.codegen.errors import CodegenError
from jaxmono.codegen.generate import generate
from jaxmono.codegen.program import Program
from jaxmono.codegen.target import Target, arch_of, cuda_target, interpret_target

__all__ = ["CodegenError", "Program", "Target", "arch_of", "cuda_target", "generate",
           "interpret_target"]
