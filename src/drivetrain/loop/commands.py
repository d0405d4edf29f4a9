"""What commands do to a run: on every rank alike, at the boundary where all have heard them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from drivetrain.ledger.records import CommandRecord, Effect
from drivetrain.loop.control import REPLAYED, Control
from drivetrain.loop.observe import Observer
from drivetrain.loop.rollback import Rewind
from drivetrain.loop.scoring import Scoring
from drivetrain.loop.tuning import Tuning
from drivetrain.spec.commands import Command
from drivetrain.spec.exits import Exit, Failure


class Commands:
    """Applies commands, and remembers which of them still hold: a pause, a stop, a commit or evaluation that is due."""

    def __init__(
        self,
        control: Control,
        tuning: Tuning,
        observer: Observer,
        rewind: Rewind,
        scoring: Scoring,
        pin: Callable[[int], None],
    ) -> None:
        """`pin` keeps the commit of a step for good; on ranks that commit nothing it does nothing."""
        self.tuning = tuning
        self.paused = control.history.pending == "pause"
        self.stop_requested = control.history.pending == "stop"
        self._control = control
        self._observer = observer
        self._rewind = rewind
        self._scoring = scoring
        self._pin = pin
        self._requested: set[str] = set()

    def replay(self, step: int) -> Sequence[CommandRecord]:
        """What was told after this step before, and is done again."""
        return self._control.replay(step)

    def fresh(self, step: int) -> Iterator[CommandRecord]:
        """What the leader has heard, one by one: each is to be applied before the next is taken."""
        while (command := self._control.take(step, self._effect)) is not None:
            yield command

    def apply(self, command: CommandRecord, step: int) -> None:
        """What one command wants after this step."""
        if command.verb in REPLAYED:
            self._rewind.clear()  # it is not undone
        match command.verb:
            case "pause":
                self.paused = not self.stop_requested  # a run that is to stop does not wait first
            case "resume":
                self.paused = False
            case "stop":
                self.stop_requested, self.paused = True, False
            case "save" | "evaluate" as verb:
                self._requested.add(verb)
            case "pin":
                self._requested.add("save")
                self._pin(step)
            case "profile":
                self._observer.profile(step + 1, int(command.argument))
            case "set":
                assert command.effect is not None
                self.tuning.apply(command.argument, command.effect, step)

    def take_requests(self) -> set[str]:
        """What commands want at this boundary, and schedules do not: `save`, `evaluate`. It is asked for once."""
        requested, self._requested = self._requested, set()
        return requested

    def close(self, step: int) -> None:
        """Refuse what still waits: the run is at its end."""
        self._control.close(step)

    def _effect(self, command: Command, step: int) -> Effect:
        """What a command comes to, for its record; nothing is changed yet. Raises Failure where it cannot be done."""
        match command.verb:
            case "profile":
                self._observer.require_free(step + 1)
            case "evaluate" if not self._scoring.sets.validation:
                raise Failure(Exit.BAD_COMMAND, "there are no validation sets", "name some under data.validation")
            case "set":
                return self.tuning.effect(command.argument, step)
        return Effect()
