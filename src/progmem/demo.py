"""A first look: one made series, seen at three scales, as a batch and as a stream."""

import torch
from torch import Tensor

from progmem.config import ModelConfig
from progmem.encoding import Encoding
from progmem.model.pmt import PMT
from progmem.model.stream import Stream


def demo() -> None:
    """Encode a made two-channel recording with an untrained tiny model and print what comes out."""
    torch.manual_seed(0)
    x = made_recording()
    model = PMT(ModelConfig(channels=2, size="tiny", window=16, stride=8))
    whole = model.encode(x)
    print(f"one recording of {x.shape[1]} samples, 2 channels, {int(x.isnan().sum())} missing")
    print("model: tiny, untrained\n")
    for level, shape, spans, mask in _levels(whole):
        print(f"{level:9} {shape:16} first covers samples {spans[0].tolist()}, {mask}")

    stream = Stream(model, batch_size=1)
    parts = [stream.push(chunk) for chunk in torch.split(x, 37, dim=1)]
    parts.append(stream.finish())
    apart = max(_apart(parts, whole, "tokens"), _apart(parts, whole, "memory"))
    print(f"\nthe same in chunks of 37 samples: largest difference {apart:.1e}")
    print("`make test` checks this and the rest; training comes with the next release")


def made_recording() -> Tensor:
    """A slow wave, a burst and noise, one after the other, with a gap: (1, 1200, 2)."""
    t = torch.arange(400)
    slow, burst = torch.sin(t / 30), torch.sin(t / 2) * torch.hann_window(400)
    noise = torch.randn(400)
    x = torch.cat([slow, burst, noise])[:, None] * torch.tensor([1.0, 0.5])
    x[700:760] = torch.nan
    return x[None]


def _levels(z: Encoding) -> list[tuple[str, str, Tensor, str]]:
    assert z.memory is not None and z.window_mask is not None and z.window_spans is not None
    missing_tokens, missing_windows = (int((~m).sum()) for m in (z.token_mask, z.window_mask))
    everything = torch.tensor([[0, int(z.token_spans[-1, 1])]])
    return [
        ("tokens", str(tuple(z.tokens.shape)), z.token_spans, f"{missing_tokens} missing"),
        ("memory", str(tuple(z.memory.shape)), z.window_spans, f"{missing_windows} missing"),
        ("sequence", str(tuple(z.sequence.shape)), everything, "0 missing"),
    ]


def _apart(parts: list[Encoding], whole: Encoding, level: str) -> float:
    pieces = torch.cat([getattr(part, level) for part in parts], dim=1)
    return (pieces - getattr(whole, level)).abs().max().item()
