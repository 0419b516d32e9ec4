"""A tape stands in for a CUDA graph: every operation with the very tensors it read and wrote.

Done again on the same memory; as with a graph, no Python runs in a replay.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LOOKS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "lift_fresh")


class Tape(TorchDispatchMode):
    """Operations as they are done; refuses those that a graph cannot hold."""

    def __init__(self):
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in LOOKS, f"{name} looks at values or brings them from the host"
        out = func(*args, **(kwargs or {}))
        made = _memory(out) - _memory((args, kwargs))
        if made or func._schema.is_mutable:  # a view stays one
            self.done.append((func, args, kwargs or {}, out))
        return out

    def play(self):
        for func, args, kwargs, out in self.done:
            again = func(*args, **kwargs)
            if not func._schema.is_mutable:
                for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                    old.copy_(new)


def _memory(values):
    tensors = [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]
    return {t.untyped_storage().data_ptr() for t in tensors}
