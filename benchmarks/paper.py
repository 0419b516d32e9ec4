"""Figures of the paper's compute appendix, to stand beside ours: one NVIDIA A100 (80 GB), FP16."""

from typing import NamedTuple


class Streaming(NamedTuple):
    """PMA on a stream beside full attention over the whole sequence."""

    window_ms: float
    sequence_s: float
    full_s: float
    hertz: int
    gflops: float
    flops_change: int  # %, as printed
    memory_change: int


STREAMING: dict[int, Streaming] = {  # by samples
    512: Streaming(0.8, 0.01, 0.000, 48_000, 0.16, 95, 0),
    1024: Streaming(0.8, 0.01, 0.000, 48_000, 0.30, 82, 0),
    2048: Streaming(0.8, 0.01, 0.000, 96_000, 0.60, 70, 0),
    4096: Streaming(0.8, 0.01, 0.000, 96_000, 1.21, 53, 0),
    8192: Streaming(0.8, 0.01, 0.000, 96_000, 2.52, 31, -36),
    16384: Streaming(0.8, 0.01, 0.001, 96_000, 5.52, 6, -68),
    32768: Streaming(0.8, 0.01, 0.003, 96_000, 13.0, -18, -83),
    65536: Streaming(0.8, 0.01, 0.008, 96_000, 33.6, -37, -95),
    131072: Streaming(1.1, 0.01, 0.030, 96_000, 98.1, -49, -97),
}


class Vectorised(NamedTuple):
    """A model on 32 series of 100,000 samples at once; GFLOPs are of one series."""

    million_params: float
    gflops: float
    mb: int
    ms: float
    tokens_per_second: int


VECTORISED: dict[str, Vectorised] = {
    "vanilla": Vectorised(7.4, 692.34, 8485, 4619.13, 86_590),
    "fused": Vectorised(7.4, 692.34, 8336, 3476.55, 115_047),
    "PMA": Vectorised(16.3, 329.95, 12292, 2962.21, 135_022),
    "PMT": Vectorised(20.1, 329.99, 12337, 5381.27, 74_326),
}
# on a stream, by W: GFLOPs a step and share of its time in %; of whole series, by tokens: GFLOPs
AGGREGATOR_STREAMING: dict[int, tuple[float, float]] = {
    1024: (0.24, 3.1), 2048: (0.48, 1.7), 4096: (0.96, 1.1)
}  # fmt: skip
AGGREGATOR_VECTORISED: dict[int, float] = {25_000: 11.7, 50_000: 23.4, 100_000: 46.8}
