"""Settings of a training with labels: those of a run, without losses, and a section of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from progmem.data.labels import parse_amount
from progmem.errors import InputError
from progmem.fields import (
    check_fields,
    check_mapping,
    check_names,
    checked,
    choice,
    flag,
    names,
    number,
    plain,
    positive,
    whole,
)
from progmem.settings import RunConfig, read_values, run_config

SECTIONS = ("model", "data", "views", "train")  # that both kinds of run have
TRAIN = {"epochs": 50, "batch_size": 64, "lr": 5e-4}  # where a label teaches, not a batch


def is_amount(value: Any) -> bool:
    try:
        return isinstance(value, str) and (value == "all" or parse_amount(value) > 0)
    except InputError:
        return False


@dataclass(frozen=True, kw_only=True)
class LabelConfig:
    """Which labels are learnt from, and what learns."""

    encoder: str = choice("pmt", "vanilla")  # vanilla: full attention, to compare with
    only_head: bool = flag(False)  # the network stays as it is
    labels: str = checked("all", is_amount, "all, a share such as 5%, or a number a class")
    label_seed: int = whole(0, 0)  # draws them, as for the few-label probe
    validation: float = number(0.0, 0, 1)  # share of the training rows that is scored, not learnt
    views: str = choice("none", "weak", "strong")  # what a row is shown as
    head_lr: float = positive(3e-3)  # peak learning rate of the head

    def __post_init__(self) -> None:
        check_fields(self, "finetune")


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """All settings of a training with labels."""

    run: RunConfig = field(default_factory=lambda: finetune_config({}).run)
    finetune: LabelConfig = field(default_factory=LabelConfig)

    def to_dict(self) -> dict[str, Any]:
        run = self.run.to_dict()
        return {**{name: run[name] for name in SECTIONS}, "finetune": asdict(self.finetune)}


def finetune_config(values: Mapping[str, Any]) -> FinetuneConfig:
    """The settings of a nested mapping, as yaml gives it; what is missing keeps its default."""
    check_names(values, [*SECTIONS, "finetune"])
    own = check_mapping(values.get("finetune") or {}, "finetune")
    check_names(own, names(LabelConfig), "finetune")
    run = {name: values[name] for name in SECTIONS if name in values}
    run["train"] = {**TRAIN, **check_mapping(run.get("train") or {}, "train")}
    run["loss"] = {"pcl": 0}  # no objective but the labels: a model without memory is fine
    return FinetuneConfig(run=run_config(run), finetune=LabelConfig(**plain(own, LabelConfig)))


def read_finetune_config(path: Path | None, overrides: Sequence[str] = ()) -> FinetuneConfig:
    """As `progmem.settings.read_config`."""
    return finetune_config(read_values(path, overrides))
