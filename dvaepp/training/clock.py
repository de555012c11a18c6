"""How fast a run is, how long it will take, and when its next checkpoint is due."""

import time
from collections.abc import Callable


class Clock:
    """Steps per second since the start or the resumption of a run, the time left, and when to save."""

    def __init__(self, first_step: int, steps: int, checkpoint_minutes: float) -> None:
        self.first_step, self.steps = first_step, steps
        self.started = self._saved = time.monotonic()
        self._between = 60 * checkpoint_minutes
        self._announced = False

    def saved(self) -> None:
        self._saved = time.monotonic()

    def save_due(self) -> bool:
        return time.monotonic() - self._saved >= self._between

    def speed(self, step: int) -> float:
        return (step - self.first_step) / (time.monotonic() - self.started)

    def left(self, step: int) -> str:
        """How long the remaining steps will take, e.g. "12 min left"; empty before the first step has been measured."""
        if step <= self.first_step:
            return ""
        return f"{duration((self.steps - step) / self.speed(step))} left"

    def announce(self, step: int, say: Callable[[str], None]) -> None:
        """Say the speed and the time left, once in a run, after the first five seconds of training."""
        if not self._announced and step > self.first_step and time.monotonic() - self.started > 5:
            self._announced = True
            say(f"{self.speed(step):.3g} steps/s; about {self.left(step)}")


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, whichever reads best."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
