"""What is written down of each update, one update late: a GPU is then never waited for."""

from collections.abc import Callable

from progmem.settings import RunConfig
from progmem.training.monitor import Monitor, health
from progmem.training.schedule import learning_rate
from progmem.training.update import Outcome

COLLAPSED = 1e-3  # feature sd below which a run is warned about


class Diary:
    """Reads outcomes, which ends a run whose values are not finite, and tells the monitor."""

    def __init__(
        self, monitor: Monitor | None, cfg: RunConfig, total: int, say: Callable[[str], None]
    ) -> None:
        self.monitor, self.train, self.total, self.say = monitor, cfg.train, total, say
        self.last: Outcome | None = None
        self.warned = False

    def write(self, outcome: Outcome) -> None:
        """Note the outcome before this one."""
        last, self.last = self.last, outcome
        if last is not None:
            self._note(last)

    def close(self) -> None:
        """Note the newest outcome too."""
        if self.last is not None:
            self._note(self.last)
            self.last = None

    def _note(self, outcome: Outcome) -> None:
        values = outcome.read()
        if self.monitor is None:
            return
        finished = outcome.number + 1
        gradient = values.pop("gradient")
        values |= {"lr": learning_rate(outcome.number, self.total, self.train)}
        logged = finished % self.train.log_every == 0
        if logged:
            values |= {"gradient": gradient}
        if logged and len(outcome.sequence) > 1:  # one has no spread
            values |= health(outcome.sequence.cpu())
            if values["feature_sd"] < COLLAPSED and not self.warned:
                self.warned = True
                self.say(
                    f"step {finished}: the sequence vectors have collapsed (feature sd "
                    f"{values['feature_sd']:.1e}); try other views or a lower lr"
                )
        self.monitor.step(finished, values, outcome.rows)
