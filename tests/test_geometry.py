"""Counts, spans and layouts, against values worked by hand and plain counting."""

import pytest
import torch

from progmem import ModelConfig, geometry


def config(window, stride, **settings):
    return ModelConfig(
        channels=1, window=window, stride=stride, patch=3, patch_stride=2, **settings
    )


def test_the_papers_ford_sized_example_has_17_windows():
    assert geometry.count_windows(config(100, 25), 500) == 17


@pytest.mark.parametrize("window, stride", [(6, 3), (8, 3), (5, 5), (7, 2), (4, 1), (1, 1)])
def test_every_token_is_covered_and_no_window_is_spare(window, stride):
    for tokens in range(1, 60):
        windows = geometry.count_windows(config(window, stride), tokens)
        ends = [w * stride + window for w in range(windows)]
        assert ends[-1] >= tokens
        assert windows == 1 or ends[-2] < tokens


@pytest.mark.parametrize("mode", ["cover", "floor"])
@pytest.mark.parametrize("window, stride", [(6, 3), (8, 3), (5, 5), (7, 2)])
def test_a_window_exists_exactly_when_the_count_includes_it(window, stride, mode):
    cfg = config(window, stride, windows=mode)
    for tokens in range(1, 40):
        exists = geometry.windows_exist(cfg, torch.tensor([tokens]), 20)
        assert exists.sum() == geometry.count_windows(cfg, tokens)
        for w in range(1, 20):
            assert (tokens >= geometry.tokens_until(cfg, w)) == bool(exists[0, w])


def test_spans_are_the_samples_a_part_was_made_from():
    cfg = config(4, 2)  # 7 tokens of 3 samples, 2 apart, are 15 samples
    assert geometry.count_tokens(cfg, 15) == 7
    assert geometry.token_spans(cfg, 5, 7).tolist() == [[10, 13], [12, 15]]
    spans = geometry.window_spans(cfg, 0, 3, tokens=7)
    assert spans.tolist() == [[0, 9], [4, 13], [8, 15]]  # the last window has three tokens


def test_copies_are_ordered_from_the_newest_window():
    cfg = config(5, 2)  # O = 3
    rows = unfolded = geometry.unfold_windows(torch.arange(1, 10)[None, :, None], cfg, 3)
    assert unfolded[0, :, :, 0].tolist() == [[1, 2, 3, 4, 5], [3, 4, 5, 6, 7], [5, 6, 7, 8, 9]]
    rows = rows + torch.tensor([100, 200, 300])[None, :, None, None]  # mark each row's window
    copies = geometry.align_copies(rows, cfg, 9)[0, :, :, 0]
    assert copies.tolist() == [
        [101, 0, 0],
        [102, 0, 0],
        [203, 103, 0],
        [204, 104, 0],
        [305, 205, 105],
        [306, 206, 0],
        [0, 307, 207],
        [0, 308, 0],
        [0, 0, 309],
    ]


@pytest.mark.parametrize("length", [*range(1, 200), 500, 1000, 2048])
def test_for_length_gives_even_windows_and_the_papers_safe_tokenizer(length):
    cfg = ModelConfig.for_length(length, channels=2)
    tokens = geometry.count_tokens(cfg, length)
    assert cfg.window == 2 * cfg.stride
    assert tokens >= 1
    if length >= 60:
        assert 0.1 <= cfg.patch / length <= 0.15
        assert cfg.patch_stride <= max(1, 0.2 * cfg.patch)
        assert 0.1 <= cfg.window / tokens <= 0.3
