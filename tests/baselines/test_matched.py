"""The matched architectures: equal to their loops, as causal as they say, as large as PMT."""

import sys

import pytest
import reference
import reference_matched as loops
import torch
from model_setup import gradients, make_series, weighted_sum

import progmem
from progmem.baselines.encoder import last_row
from progmem.baselines.matched import MatchedNetwork
from progmem.baselines.transformer_xl import TransformerXL
from progmem.baselines.windowed import WindowedTransformer
from progmem.baselines.xlstm import XLSTM, mlstm
from progmem.errors import ConfigError
from progmem.geometry import count_windows, window_masks

STACKS = {"transformer_xl": TransformerXL, "windowed": WindowedTransformer, "xlstm": XLSTM}


def make(stack, *, window=6, stride=3, slots=0, blocks=1, **settings):
    """A small float64 model with every weight drawn."""
    if stack == "xlstm":
        pytest.importorskip("xlstm")
    cfg = progmem.ModelConfig(
        channels=2, dim=16, heads=2, blocks=blocks, window=window, stride=stride, slots=slots,
        patch=3, patch_stride=2, **settings,
    )  # fmt: skip
    model = MatchedNetwork(cfg, STACKS[stack]).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def masks_of(model, valid):
    """Of series that are as long as ``valid`` (B, K)."""
    B, K = valid.shape
    counts = torch.full((B,), K)
    return window_masks(model.cfg, valid, counts, count_windows(model.cfg, K), gaps=True)


def by_loops(model, x):
    """Tokens, memory, sequence and eos of samples (L, C)."""
    cfg, stack = model.cfg, model.stack
    tokens, valid = reference.tokenize(model, x)
    memory = None
    if isinstance(stack, TransformerXL):
        out = loops.transformer_xl(cfg, stack, tokens, valid)
        eos = next((out[t] for t in reversed(range(len(out))) if valid[t]), torch.zeros(cfg.dim))
    else:
        out, memory, eos = loops.windowed(cfg, stack, tokens, valid)
        eos = eos if memory is None else memory[-1].mean(0)
    out = [row if there else torch.zeros(cfg.dim) for row, there in zip(out, valid, strict=True)]
    tokens, sequence = reference.neighbourhood(cfg, model.encoder, out, valid)
    return tokens, memory, sequence, eos


@pytest.mark.parametrize(
    ("stack", "settings", "gaps"),
    [
        ("transformer_xl", {"window": 4, "stride": 2, "blocks": 2}, True),
        ("transformer_xl", {"window": 7, "stride": 3}, False),
        ("transformer_xl", {"window": 30, "stride": 5}, True),  # one segment, partly filled
        ("windowed", {"window": 6, "stride": 3}, True),
        ("windowed", {"window": 7, "stride": 2}, False),
        ("windowed", {"window": 30, "stride": 5, "slots": 1}, True),
        ("windowed", {"window": 6, "stride": 3, "slots": 2}, True),
        ("windowed", {"window": 4, "stride": 4, "slots": 1, "blocks": 2}, True),
    ],
)
def test_values_and_gradients_are_those_of_plain_loops(stack, settings, gaps):
    model = make(stack, **settings)
    series = make_series(13, gaps=gaps)
    x = torch.nn.utils.rnn.pad_sequence(series, batch_first=True, padding_value=9.0)
    lengths = torch.tensor([len(s) for s in series])
    mask = ~x.isnan() if gaps else None
    z = model(x.nan_to_num(), mask, lengths=lengths)
    loss, expected_loss = 0.0, 0.0
    for row, s in enumerate(series):
        tokens, memory, sequence, eos = by_loops(model, s)
        K = len(tokens)
        memory_here = None if memory is None else z.memory[row, : len(memory)]
        ours = z.tokens[row, :K], memory_here, z.sequence[row], z.eos[row]
        theirs = tokens, memory, sequence, eos
        for a, b in zip(ours, theirs, strict=True):
            if b is not None:
                torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
        loss, expected_loss = loss + weighted_sum(ours), expected_loss + weighted_sum(theirs)
    found, expected = gradients(model, loss), gradients(model, expected_loss)
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() < 1e-10 * max(1, gradient.abs().max()), name


def test_a_segment_reads_the_cache_but_teaches_it_nothing():
    model = make("transformer_xl", window=5, stride=5)
    x = torch.randn(1, 3 + 2 * 9, 2, dtype=torch.float64, requires_grad=True)  # two segments
    tokens, valid = model.tokenizer(x)

    def second_segment(tokens):
        return model.stack(tokens, masks_of(model, valid)).tokens[:, 5:]

    changed = tokens.detach().clone()
    changed[:, 2] += torch.randn(16)
    assert (second_segment(changed) - second_segment(tokens)).abs().amax(2).min() > 1e-6
    (gradient,) = torch.autograd.grad(second_segment(tokens).square().sum(), tokens)
    assert not gradient[:, :5].any() and (gradient[:, 5:] != 0).all()


@pytest.mark.parametrize("stack", ["transformer_xl", "xlstm"])
def test_a_token_sees_only_its_past(stack):
    model = make(stack)
    x = torch.randn(1, 61, 2).double()
    before = model(x)
    x[:, 31:] += 1  # tokens end at sample 2 t + 3: those up to 14 end before
    after = model(x)
    torch.testing.assert_close(after.tokens[:, :15], before.tokens[:, :15], rtol=0, atol=1e-12)
    assert (after.tokens[:, 15:] - before.tokens[:, 15:]).abs().amax(2).min() > 1e-9


def test_a_state_that_is_passed_on_sees_only_the_windows_up_to_it():
    model = make("windowed", slots=1)
    x = torch.randn(1, 61, 2).double()
    before = model(x)
    x[:, 31:] += 1
    after = model(x)
    past = before.window_spans[:, 1] <= 31
    apart = (after.memory - before.memory).abs().amax((0, 2, 3))
    assert past.any() and apart[past].max() < 1e-12 and apart[~past].min() > 1e-9
    x[:, 31:] -= 1
    x[:, :4] += 1  # what comes first is still known at the end
    assert (model(x).eos - before.eos).abs().max() > 1e-9


def test_without_a_state_each_window_is_alone():
    model = make("windowed", window=6, stride=6)
    x = torch.randn(1, 3 + 2 * 17, 2).double()  # three windows
    whole = model(x)
    alone = model(x[:, 24:])  # the last of them
    torch.testing.assert_close(whole.eos, alone.eos, rtol=0, atol=1e-12)
    signal, valid = model.tokenizer(x)
    second = model.stack(signal, masks_of(model, valid)).tokens[:, 6:12]
    (gradient,) = torch.autograd.grad(second.square().sum(), signal)
    assert gradient[:, 6:12].any() and not gradient[:, :6].any() and not gradient[:, 12:].any()


def test_an_mlstm_is_its_recurrence_however_it_is_computed(monkeypatch):
    pytest.importorskip("xlstm")
    q, k, v = torch.randn(3, 1, 1, 100, 4).double()
    i, f = torch.randn(1, 1, 100, 1).double(), 3 + torch.randn(1, 1, 100, 1).double()
    expected = loops.mlstm(*(t[0, 0] for t in (q, k, v)), i.flatten(), f.flatten())
    at_once = mlstm(q, k, v, i, f)
    monkeypatch.setattr("progmem.baselines.xlstm.LONGEST_PARALLEL", 10)
    in_chunks = mlstm(q, k, v, i, f)
    for found in (at_once, in_chunks):  # the package adds 1e-6 to a denominator
        torch.testing.assert_close(found[0, 0], expected, rtol=1e-4, atol=1e-5)
    assert not torch.equal(at_once, in_chunks)


def test_an_xlstm_is_that_of_the_package_and_takes_any_length():
    model = make("xlstm")
    tokens, valid = torch.randn(2, 30, 16).double(), torch.ones(2, 30, dtype=torch.bool)
    valid[1, 20:] = False
    out = model.stack(tokens, masks_of(model, valid))
    state, rows = None, []
    for t in range(30):
        row, state = model.stack.blocks.step(tokens[:, t : t + 1], state)
        rows.append(row)
    torch.testing.assert_close(out.tokens, torch.cat(rows, 1), rtol=1e-4, atol=1e-5)
    assert torch.equal(out.eos, torch.stack([out.tokens[0, 29], out.tokens[1, 19]]))


def test_xlstm_is_asked_for_by_name_where_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "xlstm", None)
    with pytest.raises(ConfigError, match=r"needs the package xlstm: pip install 'progmem\[base"):
        XLSTM(progmem.ModelConfig(channels=1, size="tiny"))


@pytest.mark.parametrize("size", ["tiny", "small", "base"])
@pytest.mark.parametrize("stack", STACKS)
def test_an_architecture_has_within_a_tenth_of_the_parameters_of_pmt(stack, size):
    if stack == "xlstm":
        pytest.importorskip("xlstm")
    cfg = progmem.ModelConfig.for_length(128, 9, size=size)
    with torch.device("meta"):
        model = MatchedNetwork(cfg, STACKS[stack])
    ours = sum(p.numel() for p in model.parameters())
    assert abs(ours / progmem.count_params(cfg)["total"] - 1) < 0.1


def test_the_last_row_of_a_series_without_any_is_zero():
    rows = torch.arange(1.0, 13).view(2, 3, 2)
    valid = torch.tensor([[True, True, False], [False, False, False]])
    assert last_row(rows, valid).tolist() == [[3.0, 4.0], [0.0, 0.0]]
