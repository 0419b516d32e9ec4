"""The three-block CNN: its tokens, what they are made of, and its batch normalisation."""

import pytest
import torch
from torch import nn

from progmem.baselines.cnn import CNN, BatchNorm, ProjectionHead, count_tokens
from progmem.baselines.tstcc import TSTCCConfig

LENGTHS = {128: 18, 178: 24, 152: 21, 500: 65, 80: 12, 96: 14}


def blank_cnn(channels=2, dim=16):
    return CNN(TSTCCConfig(channels=channels, dim=dim))


def make_cnn(channels=2, dim=16):
    """One whose statistics are not those of a start."""
    model = blank_cnn(channels, dim).double()
    for _ in range(3):
        model(3 * torch.randn(8, 40, channels).double() + 1)
    return model.eval()


@pytest.mark.parametrize("length, tokens", LENGTHS.items())
def test_the_published_numbers_of_tokens(length, tokens):
    z = blank_cnn(1, 8)(torch.randn(2, length, 1))
    assert count_tokens(length) == tokens and z.tokens.shape == (2, tokens, 8)
    assert len(z.token_spans) == tokens and z.token_mask.all()


def test_it_equals_the_layers_as_published():
    """Convolution, batch normalisation, ReLU, pooling: torch's own layers with the same weights."""
    model = make_cnn(3, 128)
    layers = []
    for block in model.blocks:
        norm = nn.BatchNorm1d(block.conv.out_channels).double()
        norm.load_state_dict(block.norm.state_dict())
        layers += [block.conv, norm, nn.ReLU(), nn.MaxPool1d(2, 2, padding=1)]
    x = torch.randn(4, 128, 3).double()
    published = nn.Sequential(*layers).eval()(x.transpose(1, 2))
    torch.testing.assert_close(model(x).tokens, published.transpose(1, 2), rtol=0, atol=1e-12)
    assert [block.conv.out_channels for block in model.blocks] == [32, 64, 128]


@pytest.mark.parametrize("length", [1, 2, 7, 64, 101])
def test_a_token_is_made_of_the_samples_of_its_span(length):
    model = make_cnn()
    x = torch.randn(3, length, 2).double().requires_grad_()
    z = model(x)
    for token, (start, end) in zip(z.tokens.unbind(1), z.token_spans.tolist(), strict=True):
        (gradient,) = torch.autograd.grad(token.sum(), x, retain_graph=True)
        reached = gradient.abs().sum((0, 2)).nonzero().flatten()
        assert len(reached) == 0 or (start <= reached[0] and reached[-1] < end)
        assert 0 <= start < end <= length
    assert z.token_spans[0, 0] == 0 and z.token_spans[-1, 1] == length
    if length == 101:  # whole: 57 samples
        assert (z.token_spans[5, 1] - z.token_spans[5, 0]).item() == 57


def test_a_token_that_sees_no_sample_is_missing():
    model = make_cnn()
    x, mask = torch.randn(1, 200, 2).double(), torch.ones(1, 200, 2, dtype=torch.bool)
    mask[:, 40:150] = False
    z = model(x, mask)
    start, end = z.token_spans.T
    assert torch.equal(z.token_mask[0], ~((start >= 40) & (end <= 150)))
    assert not z.token_mask.all() and not z.tokens[~z.token_mask].any()
    hidden = torch.where(mask, x, 99.0)
    assert torch.equal(model(hidden, mask).tokens, z.tokens)
    assert torch.equal(model(x, mask.any(2)).tokens, z.tokens)


def test_training_statistics_do_not_see_padding():
    """A padded batch gives the statistics, outputs and gradients of its samples alone."""
    lengths = torch.tensor([40, 23, 31])
    x = torch.randn(3, 40, 4).double()
    there = torch.arange(40) < lengths[:, None]
    ours, theirs = BatchNorm(4).double(), nn.BatchNorm1d(4).double()
    found = ours(torch.where(there[..., None], x, 55.0).transpose(1, 2), there[:, None])
    expected = theirs(x[there])
    torch.testing.assert_close(found.transpose(1, 2)[there], expected, rtol=0, atol=1e-12)
    weight = torch.randn_like(expected)
    (found.transpose(1, 2)[there] * weight).sum().backward()
    (expected * weight).sum().backward()
    for (name, ours_part), theirs_part in zip(
        ours.state_dict().items(), theirs.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours_part, theirs_part, rtol=0, atol=1e-12, msg=name)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=0, atol=1e-10)


def test_training_on_a_padded_batch_equals_training_on_its_series():
    """With all of one length, padding changes neither outputs nor statistics."""
    x = torch.randn(4, 50, 2).double()
    padded = torch.cat([x, torch.full((4, 23, 2), 7.0).double()], dim=1)
    torch.manual_seed(1)
    plain = blank_cnn().double()
    torch.manual_seed(1)
    masked = blank_cnn().double()
    for model in (plain, masked):
        for block in model.blocks:
            block.train()
        model.training = False  # no dropout: its draws depend on the shape
    ours = masked(padded, lengths=torch.full((4,), 50))
    theirs = plain(x)
    K = theirs.tokens.shape[1]
    torch.testing.assert_close(ours.tokens[:, :K], theirs.tokens, rtol=0, atol=1e-12)
    assert not ours.tokens[:, K:].any() and not ours.token_mask[:, K:].any()
    torch.testing.assert_close(ours.sequence, theirs.sequence, rtol=0, atol=1e-12)
    for name, buffer in masked.named_buffers():
        torch.testing.assert_close(buffer, plain.get_buffer(name), rtol=0, atol=1e-12)


def test_dropout_is_after_the_first_block_and_in_training_only():
    model = blank_cnn()
    x = torch.randn(2, 50, 2)
    first = model.outputs(x)[0]
    zeros = [(made == 0).float().mean() for made in (first, model.eval().outputs(x)[0])]
    assert zeros[0] - zeros[1] > 0.1
    assert torch.equal(model(x).tokens, model(x).tokens)
    calm = CNN(TSTCCConfig(channels=2, dim=16, dropout=0))
    assert torch.equal(calm.outputs(x)[0], calm.outputs(x)[0])


def test_a_projection_head_is_two_linear_maps_around_a_normalised_relu():
    head = ProjectionHead(6, 5, 3)
    x = torch.randn(7, 6)
    layers = nn.Sequential(head.first, nn.BatchNorm1d(5), nn.ReLU(), head.last)
    torch.testing.assert_close(head(x), layers(x))
