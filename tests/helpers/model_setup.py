"""Small models with every weight drawn, series for them, and losses that reach every output."""

import torch

import progmem


def make_model(window, stride, slots, *, blocks=2, **settings):
    cfg = progmem.ModelConfig(
        channels=2, dim=16, heads=2, blocks=blocks, window=window, stride=stride, slots=slots,
        patch=3, patch_stride=2, **settings,
    )  # fmt: skip
    model = progmem.PMT(cfg).double()
    with torch.no_grad():  # leave the special values of initialisation: zeros and ones hide errors
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def make_series(tokens, *, gaps):
    """Three series: ``tokens`` tokens, about half of that, and as many again but gappy."""
    lengths = [3 + 2 * (tokens - 1), 3 + 2 * (max(1, tokens // 2) - 1) + 1, 3 + 2 * (tokens - 1)]
    series = [torch.randn(n, 2).double() for n in lengths]
    if gaps:
        series[2][: lengths[2] // 3] = torch.nan  # whole tokens and, in long series, whole windows
        series[2][:, 1] = torch.nan  # one channel never there
        series[1][-1] = torch.nan
    return series


def weighted_sum(parts):
    """A loss that reaches every output with its own weight."""
    generator = torch.Generator().manual_seed(1)
    return sum(
        (torch.randn(p.shape, generator=generator, dtype=p.dtype) * p).sum()
        for p in parts
        if p is not None and p.is_floating_point()
    )


def gradients(model, loss):
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True))
