"""How many epochs a script has done, from what it has done with each of the loaders with which it trains."""

from __future__ import annotations


class Epochs:
    """Counts epochs over the script's training loaders, numbered in the order of their first use."""

    def __init__(self) -> None:
        self._of: dict[int, float] = {}

    def done(self, phase: int, epochs: float, *, says_epoch: bool) -> float:
        """The epochs in all, if `epochs` are done with loader number `phase`.

        `says_epoch`: `epochs` begins with the script's own number of the epoch, which counts from 0 whatever
        the loader. Else each loader before counts with the epochs that it had; with one if this worker has
        not seen them, as in a script that makes a loader for each epoch.
        """
        self._of[phase] = epochs
        if says_epoch:
            return epochs
        return epochs + sum(max(1.0, self._of.get(before, 1.0)) for before in range(phase))
