"""The worth of a step with a larger batch, from the noise of gradients (Pollux, section 3.1).

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GradientStatistics:
    """Statistics of gradients at the initial batch, in any common unit."""

    square: float
    """Squared norm of their mean."""
    variance: float
    """Trace of their covariance."""

    def gain(self, scale: float) -> float:
        """The progress of a step with `scale` times the initial batch, in steps of the initial batch.

        It is between 1 (gradients without noise: more samples tell nothing new) and `scale` (nothing but
        noise). Pollux' efficiency (eq. 6) is this value divided by `scale`.
        """
        noise = self.variance / scale + self.square
        return (self.variance + self.square) / noise if noise > 0 else 1.0

    def gains(self, scales: Array) -> Array:
        """The `gain` of each scale in an array of any shape."""
        if self.variance + self.square <= 0:
            return np.ones_like(scales)
        return (self.variance + self.square) / (self.variance / scales + self.square)
