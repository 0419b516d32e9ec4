"""Series for streams, cut and joined, and what they give compared."""

import torch

LEVELS = ("tokens", "memory", "token_mask", "window_mask")


def cut_up(x, sizes):
    pieces, start = [], 0
    for size in sizes:
        pieces.append(x[:, start : start + size])
        start += size
    return [*pieces, x[:, start:]]


def join(parts):
    """One Encoding of all that a stream gave out."""
    levels = [name for name in LEVELS if getattr(parts[-1], name) is not None]
    joined = {name: torch.cat([getattr(p, name) for p in parts], dim=1) for name in levels}
    spans = {n: torch.cat([getattr(p, n) for p in parts]) for n in ("token_spans", "window_spans")}
    return parts[-1]._replace(**joined, **spans)


def assert_same(streamed, whole, atol):
    for name, ours in streamed._asdict().items():
        theirs = getattr(whole, name)
        if ours is None or theirs is None:
            assert ours is theirs, name
            continue
        assert ours.shape == theirs.shape, name
        if ours.is_floating_point():
            torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)
        else:
            assert torch.equal(ours, theirs), name


def gappy(batch, length, generator=None):
    x = torch.randn(batch, length, 2, generator=generator).double()
    x[0, length // 4 : length // 2] = torch.nan
    x[-1, -(length // 5) :, 0] = torch.nan
    return x


def change_weights(model, *, moves):
    linear = model.blocks[1].layer.out
    if moves:
        linear.weight = torch.nn.Parameter(1.5 * linear.weight.detach())
    else:
        with torch.no_grad():
            linear.weight.mul_(1.5)
