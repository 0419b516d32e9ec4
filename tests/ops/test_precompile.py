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
from progmem.ops.fused import gated_mix
from progmem.ops.fused.precompile import precompile

def made():
    return len(gated_mix._mix_forward.function.device_caches[0][0])

def mix(rows, width, dtype=torch.float32):
    z = torch.ones(rows, width, dtype=dtype)
    gated_mix.gated_mix(z, z[:1], z, z)

with precompile(lambda: True):
    for rows in (5, 19, 4):  # no kernels of their own
        mix(rows, 32)
    mix(5, 7)
    mix(5, 32, torch.bfloat16)
    mix(5, 32)
print(made(), launchers)
with precompile(lambda: True):
    mix(9, 7)
print(made())
try:
    with precompile(lambda: False):
        mix(5, 32)
except Exception:
    print("launched")
"""


def test_kernels_are_made_once_a_kind_and_not_launched(tmp_path):
    settings = {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=os.environ | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["3 " + str(["_mix_forward"] * 3), "3", "launched"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_kernels_are_there_before_the_warm_up_also_those_of_the_backward_pass():
    from progmem.ops.fused import gated_mix

    width = 203
    x = torch.randn(5, width, device="cuda", requires_grad=True)
    more, weights = torch.randn(1, width, device="cuda"), torch.arange(width, device="cuda")
    both = gated_mix._mix_forward.function, gated_mix._mix_backward.function
    compiled = [f.device_caches[x.get_device()][0] for f in both]
    for kernels in compiled:
        kernels.clear()  # other tests may have needed the same ones
    there = []

    def call():
        there.append([len(kernels) for kernels in compiled])
        out = gated_mix.gated_mix(x, more, x, more.expand(5, -1))
        return out, torch.autograd.grad((out * weights).sum(), x)[0]

    out, slope = warm_up(call, 1)
    assert there == [[0, 0], [1, 1]]
    again = x.detach().requires_grad_()  # x itself stays with the stream of the warm-up
    g = torch.sigmoid(again + more)
    expected = g * again + (1 - g) * more
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(slope, torch.autograd.grad((expected * weights).sum(), again)[0])
