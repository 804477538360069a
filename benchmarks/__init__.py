"""Measurements beside XLA and torch: `python -m benchmarks.run` writes benchmarks/results."""
