"""What is read of a run's folder."""

import pytest

from progmem import ConfigError
from progmem.training.run_folder import read_settings


@pytest.mark.parametrize("content", [b"train: [1", b"\xff\xfe\x00", b"- 1\n", b""])
def test_a_damaged_config_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.yaml") as caught:
        read_settings(tmp_path)
    assert "\n" not in str(caught.value)
    assert read_settings(tmp_path / "no run") == {}
