"""Kernels made before they are launched; compiled for a GPU that need not be there."""

import os
import subprocess
import sys

import pytest
import torch

from progmem.ops.cuda_graphs import warm_up

pytest.importorskip("triton")

SCRIPT = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

launchers = []

class Driver:  # of a GPU that can be compiled for, not launched on
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    launcher_cls = staticmethod(lambda src, metadata: launchers.append(metadata.name))

driver.set_active(Driver())
from progmem.ops.fused import l2_normalize as unit
from progmem.ops.fused.precompile import made_ahead

def made():
    return len(unit._normalize_forward.function.device_caches[0][0])

with made_ahead(lambda: True):
    for rows in (5, 16, 1):  # no kernels of their own
        unit.l2_normalize(torch.ones(rows, 32))
    unit.l2_normalize(torch.ones(5, 64))
    unit.l2_normalize(torch.ones(5, 32, dtype=torch.bfloat16))
    unit.l2_normalize(torch.ones(5, 32))
print(made(), launchers)
with made_ahead(lambda: True):
    unit.l2_normalize(torch.ones(7, 64))
print(made())
try:
    with made_ahead(lambda: False):
        unit.l2_normalize(torch.ones(5, 32))
except Exception:
    print("launched")
"""


def test_kernels_are_made_once_a_kind_and_not_launched(tmp_path):
    settings = {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=os.environ | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["3 " + str(["_normalize_forward"] * 3), "3", "launched"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_kernels_are_there_before_the_warm_up_also_those_of_the_backward_pass():
    from progmem.ops.fused import l2_normalize as unit

    x = torch.randn(5, 203, device="cuda", requires_grad=True)  # a width nobody else uses
    there = []

    def call():
        both = unit._normalize_forward.function, unit._normalize_backward.function
        there.append([len(f.device_caches[x.get_device()][0]) for f in both])
        out = unit.l2_normalize(x)
        return out, torch.autograd.grad((out * torch.arange(203, device="cuda")).sum(), x)[0]

    out, slope = warm_up(call, 1)
    (forward, backward), (forward_then, backward_then) = there
    assert (forward_then, backward_then) == (forward + 1, backward + 1)
    twin = x.detach().requires_grad_()  # x itself stays with the stream of the warm-up
    expected = torch.nn.functional.normalize(twin, dim=1)
    torch.testing.assert_close(out, expected)
    weights = torch.arange(203, device="cuda")
    torch.testing.assert_close(slope, torch.autograd.grad((expected * weights).sum(), twin)[0])
