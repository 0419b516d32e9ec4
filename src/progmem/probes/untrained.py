"""The encoder to beat: the same shape and normalisation, weights as they were drawn."""

import torch

from progmem.model.pmt import PMT


def untrained_twin(model: PMT, seed: int = 0) -> PMT:
    """A PMT like ``model`` that has learnt nothing but the channels' statistics."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        twin = PMT(model.cfg)
    twin.stats.load_state_dict(model.stats.state_dict())
    return twin.to(model.tokenizer.conv.weight.device).eval()
