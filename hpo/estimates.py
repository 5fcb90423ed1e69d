"""What a new trial will cost, learned in the campaign itself: a cost model, fitted again whenever a tenth more trials are measured."""

from collections.abc import Sequence

from hydragnn.hpo.costs import FEWEST, CostModel, Sized
from hydragnn.hpo.scheduling.events import Event, Reached
from hydragnn.hpo.scheduling.replay import Replay
from hydragnn.hpo.scheduling.scheduler import State, Trial
from hydragnn.hpo.space import Point, Space

GROWTH = 1.1
"""The model is fitted again once the measured trials have grown by this factor, because a fit takes its time."""


class Estimates:
    """Follows a campaign and predicts what its next trials cost; without influence on what they are."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._model = CostModel()
        self._measured: dict[int, None] = {}
        self._sizes: list[Sized] = []

    def follow(self, before: Sequence[Trial], event: Event, after: State | Replay) -> None:
        """Note what an event says about costs; ``before``: the trials that it concerns, as they were."""
        if not isinstance(event, Reached) or not before:
            return
        if after.trials[event.trial].measured:
            self._measured[event.trial] = None
        trial = before[0]
        seconds, epochs = event.seconds - trial.seconds, event.epochs - trial.passed
        if seconds > 0 and epochs > 0 and trial.epochs == trial.passed and after.most > after.least:
            self._sizes.append(Sized(trial=event.trial, slots=len(trial.slots), seconds=seconds / epochs))

    def of(self, state: State, values: Point) -> tuple[float | None, float | None]:
        """Seconds per epoch on one slot, and slots at which half of the speed is lost; None where nothing is known."""
        count = len(self._measured)
        if count >= FEWEST and count > GROWTH * self._model.measured:
            measured = [state.trials[number] for number in list(self._measured)]
            history = [(trial.values, trial.work) for trial in measured if trial.work is not None]
            self._model = CostModel.fit(history, self._space, sizes=list(self._sizes))
        return self.known(values)

    def known(self, values: Point) -> tuple[float | None, float | None]:
        """The same from the latest model, at once."""
        model = self._model
        return model.predict(values), model.scaling
