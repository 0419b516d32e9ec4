"""Out of memory, in one line."""

import pytest
import torch

from progmem.errors import TrainingError
from progmem.training.trainer import explain_oom


def test_running_out_of_memory_says_what_to_lower():
    needed = (
        r"out of memory: \d+\.\d GiB more were needed; lower train.batch_size, or set train.parts"
    )
    with pytest.raises(TrainingError, match=needed), explain_oom(torch.device("cpu")):
        torch.empty(2**50)
    with pytest.raises(RuntimeError, match="another"), explain_oom(torch.device("cpu")):
        raise RuntimeError("another")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_running_out_of_gpu_memory_says_how_much_there_is():
    device = torch.device("cuda", 0)
    with pytest.raises(TrainingError, match=r"GiB of .* GiB are free"), explain_oom(device):
        torch.empty(2**45, device=device)
