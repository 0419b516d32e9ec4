"""Which form of an operation runs, and who may know."""

import ast
import inspect
from pathlib import Path

import pytest
import torch
from kernel_setup import DEVICE, QUIET

import progmem
from progmem import ops
from progmem.ops import layers

pytest.importorskip("triton")

from progmem.ops.fused import (
    gated_mix,
    overlap_means,
    overlap_pool,
    window_layout,
)

pytestmark = QUIET
SOURCE = Path(progmem.__file__).parent


def test_a_device_that_is_not_the_current_one_is_left_to_torch(monkeypatch):
    class There:
        is_cuda, dtype = True, torch.float32

        def get_device(self):
            return 1

    monkeypatch.setattr(ops, "kernels_work", lambda _: True)
    for current in (0, 1):
        monkeypatch.setattr(torch.cuda, "current_device", lambda current=current: current)
        assert ops.use_fused(There()) == (current == 1)


def test_float64_and_whoever_asks_for_it_get_plain_torch():
    x = torch.ones(2, 3, device=DEVICE)
    with ops.use_backend("interpreted"):
        assert ops.use_fused(x) and not ops.use_fused(x.double())
        with ops.use_backend("plain"):
            assert not ops.use_fused(x)
        assert ops.use_fused(x)
    assert not ops.use_fused(torch.ones(2, 3))


def test_an_operation_runs_the_form_that_was_chosen(monkeypatch):
    calls = []
    monkeypatch.setattr(gated_mix, "gated_mix", lambda *x: calls.append(x) or x[0])
    zero, one = torch.zeros(1, 4), torch.ones(1, 4)
    with ops.use_backend("interpreted"):
        assert torch.equal(layers.gated_mix(zero, zero, one, zero), zero)
    assert len(calls) == 1
    left_out = ops.use_backend("interpreted", without={"gated_mix"})
    for backend in (ops.use_backend("plain"), left_out):
        with backend:
            assert torch.equal(layers.gated_mix(zero, zero, one, zero), torch.full((1, 4), 0.5))
    assert len(calls) == 1


def test_where_no_kernel_can_be_made_torch_takes_over_with_a_warning(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("Failed to find C compiler.\nPlease specify it.")

    ops.kernels_work.cache_clear()
    assert ops.kernels_work(DEVICE)
    ops.kernels_work.cache_clear()
    monkeypatch.setattr(gated_mix, "gated_mix", broken)
    with pytest.warns(UserWarning, match=r"no kernels can be compiled here.*find C compiler\.$"):
        assert not ops.kernels_work(DEVICE)
    assert not ops.kernels_work(DEVICE)  # said once
    ops.kernels_work.cache_clear()


@pytest.mark.parametrize("module", [window_layout, overlap_means, overlap_pool])
def test_no_kernel_is_made_anew_for_another_length(module):
    found = [f for f in vars(module).values() if type(f) is type(window_layout._unfold_rotate)]
    assert found
    for kernel in found:
        sizes = inspect.signature(kernel.function.fn).parameters
        for name in {"B", "K", "N", "R", "total"} & set(sizes):
            assert sizes[name].annotation is inspect.Parameter.empty, (kernel.function, name)


def imported_by(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_kernels_and_the_question_what_they_take_are_known_to_operations_alone():
    outside = [path for path in SOURCE.rglob("*.py") if (SOURCE / "ops") not in path.parents]
    assert len(outside) > 50
    for path in outside:
        for name in imported_by(path):
            assert not name.startswith(("progmem.ops.fused", "triton")), (path, name)
            assert name not in ("progmem.ops.use_fused", "progmem.ops.kernels_work"), path
        assert "use_fused" not in path.read_text(), path


def test_cuda_graphs_are_known_to_one_module():
    knowing = [p for p in SOURCE.rglob("*.py") if "CUDAGraph" in p.read_text()]
    assert [p.relative_to(SOURCE).as_posix() for p in knowing] == ["ops/cuda_graphs.py"]
