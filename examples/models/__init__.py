"""Flax NNX models for the examples and the benchmarks: plain JAX, written as anyone would."""
