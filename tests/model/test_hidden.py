"""Hidden samples: not seen, their tokens kept, with the mask vector in them."""

import pytest
import torch

import progmem

CFG = {
    "channels": 2, "dim": 16, "heads": 2, "blocks": 2, "patch": 4, "patch_stride": 2,
    "window": 4, "stride": 2,
}  # fmt: skip


def made_model(**more):
    torch.manual_seed(0)
    model = progmem.PMT(progmem.ModelConfig(**CFG, mask_vector=True, predictor=True, **more))
    torch.nn.init.normal_(model.tokenizer.mask_vector)
    return model.double()


def drawn(samples=30):
    torch.manual_seed(1)
    return torch.randn(3, samples, 2).double(), torch.rand(3, samples, 2) < 0.4


def test_the_value_of_a_hidden_sample_is_not_seen():
    model, (x, hidden) = made_model(), drawn()
    z = model(x, hidden=hidden)
    other = model(torch.where(hidden, 100.0, x), hidden=hidden)
    for level in ("tokens", "memory", "sequence"):
        assert torch.equal(getattr(z, level), getattr(other, level))


def test_a_token_has_as_much_of_the_mask_vector_as_is_hidden():
    model, (x, hidden) = made_model(), drawn()
    conv, vector = model.tokenizer.conv, model.tokenizer.mask_vector
    tokens, valid = model.tokenizer(x, hidden=hidden)
    assert valid.all()
    for i in range(3):
        for k in range(tokens.shape[1]):
            patch, covered = x[i, 2 * k : 2 * k + 4], hidden[i, 2 * k : 2 * k + 4]
            seen = torch.where(covered, 0.0, patch)
            expected = (conv.weight * seen.T).sum((1, 2)) + conv.bias
            expected = expected + covered.double().mean() * vector
            torch.testing.assert_close(tokens[i, k], expected, rtol=1e-12, atol=1e-12)


def test_a_token_that_is_hidden_whole_is_still_there():
    model, (x, _) = made_model(), drawn()
    hidden = torch.zeros(3, 30, 2, dtype=torch.bool)
    hidden[:, 8:20] = True
    z = model(x, hidden=hidden)
    assert z.token_mask.all() and z.window_mask.all()
    assert not model(x, ~hidden).token_mask.all()  # as a gap it is not


def test_where_nothing_is_hidden_the_model_is_the_plain_one():
    model, (x, hidden) = made_model(), drawn()
    z, plain = model(x, hidden=torch.zeros_like(hidden)), model(x)
    torch.testing.assert_close(z.tokens, plain.tokens, rtol=1e-12, atol=1e-12)


def test_gaps_and_lengths_go_with_hidden_samples():
    model, (x, hidden) = made_model(), drawn()
    mask = torch.rand(3, 30, 2) > 0.2
    lengths = torch.tensor([30, 22, 11])
    z = model(x, mask, lengths=lengths, hidden=hidden & mask)
    alone = model(x[1:2, :22], mask[1:2, :22], hidden=(hidden & mask)[1:2, :22])
    tokens = alone.tokens.shape[1]
    torch.testing.assert_close(z.tokens[1:2, :tokens], alone.tokens, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(z.sequence[1:2], alone.sequence, rtol=1e-10, atol=1e-10)


def test_mask_vector_and_predictor_are_there_only_if_asked_for_and_are_saved(tmp_path):
    plain = progmem.PMT(progmem.ModelConfig(**CFG))
    assert plain.tokenizer.mask_vector is None and plain.predictor is None
    model = made_model().float()
    extra = {"tokenizer.mask_vector", "predictor.weight", "predictor.bias"}
    assert model.state_dict().keys() - plain.state_dict().keys() == extra
    model.save(tmp_path / "model")
    again = progmem.load(tmp_path / "model")
    x, hidden = drawn()
    x = x.float()
    expected = model.decode(model(x, hidden=hidden).tokens)
    assert torch.equal(again.decode(again(x, hidden=hidden).tokens), expected)
    assert expected.shape == (3, 14, 2, 4)


def test_hidden_samples_need_a_model_that_knows_them():
    plain = progmem.PMT(progmem.ModelConfig(**CFG))
    with pytest.raises(AssertionError, match="mask vector"):
        plain(torch.randn(1, 20, 2), hidden=torch.ones(1, 20, 2, dtype=torch.bool))
