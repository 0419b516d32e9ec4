"""Triton kernels: the fused forms of `progmem.ops`, each held to its plain form by the tests."""
