"""What tests of operations share."""

import pytest
from kernel_setup import DEVICE

COARSE = {  # tiles of programs, in numbers that every width here is below
    "norm": {"ROWS": 32, "SUM_ROWS": 32},
    "window_layout": {"ROWS": 16, "TOKENS": 16},
    "scan_rows": {"ROWS": 8, "SUM_ROWS": 32},
    "overlap_means": {"TOKENS": 16},
    "overlap_pool": {"TOKENS": 16, "BACK_TOKENS": 16, "ROWS": 32},
    "slot_attention": {"HEADS": 4},
}


@pytest.fixture
def coarse(monkeypatch):
    """Fewer, larger programs where they are interpreted: there a program costs, not its rows."""
    if DEVICE == "cpu":
        for module, tiles in COARSE.items():
            for name, size in tiles.items():
                monkeypatch.setattr(f"progmem.ops.fused.{module}.{name}", size)
