"""What is read of a run's folder."""

import json

import pytest

from progmem import ConfigError
from progmem.config import read_config
from progmem.training.run_folder import cut_metrics, read_settings, settle_config


@pytest.mark.parametrize("content", [b"train: [1", b"\xff\xfe\x00", b"- 1\n", b""])
def test_a_damaged_config_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.yaml") as caught:
        read_settings(tmp_path)
    assert "\n" not in str(caught.value)
    assert read_settings(tmp_path / "no run") == {}


def test_no_flipped_bit_of_a_config_changes_a_setting(tmp_path):
    settle_config(tmp_path, read_config(None, ["model.size=tiny"]).to_dict())
    path, expected = tmp_path / "config.yaml", read_settings(tmp_path)
    good = path.read_bytes()
    for bit in [
        *range(8 * 80),
        *range(8 * 80, 8 * len(good), 29),
    ]:  # all of the line with its digest
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        with pytest.raises(ConfigError, match=r"config\.yaml is damaged"):
            read_settings(tmp_path)
    path.write_bytes(good)
    assert read_settings(tmp_path) == expected


@pytest.mark.parametrize("damage", [b"\xff\xfe\n", b"[1]\n", b'{"loss": 1}\n', b'{"step": "2"}\n',
                                    b'{"step": 2, "lo', b"[" * 200_000 + b"\n", b"\n"])  # fmt: skip
def test_damaged_lines_of_metrics_are_dropped_and_the_others_kept(tmp_path, damage):
    lines = [json.dumps({"step": step}).encode() + b"\n" for step in range(1, 5)]
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join([*lines[:2], damage, *lines[2:]]))
    cut_metrics(tmp_path, 3)
    kept = path.read_bytes().splitlines(keepends=True)
    assert kept[:2] == lines[:2] and set(kept) <= set(lines[:3])
