"""Whether a resize pays within the time that its GPUs are likely to stay (Amoeba, section 3.2).

Wu et al., "Elastic deep learning in multi-tenant GPU cluster": a job on 4 GPUs that takes 2 more for 120 s
and stands still for 30 s each way does 6 * 60 = 360 GPU s of work instead of 480; it pays from 180 s on.
"""

from __future__ import annotations

import math
from typing import Final

PAUSE_S: Final = 0.09
"""A job stands still for so long at a resize, as `make bench-runtime` found it with 11.8 million parameters
(docs/resize.md). It grows with the model."""
START_S: Final = 6.3
"""Until new workers can train; likewise."""


def work_if_grown(grown: float, stay_s: float, change_s: float) -> float:
    """Work done in `stay_s` at rate `grown`, where growing and shrinking back each stop it for `change_s`."""
    return grown * max(0.0, stay_s - 2 * change_s)


def pays(now: float, grown: float, stay_s: float, change_s: float) -> bool:
    """Whether more is done in `stay_s` by growing from rate `now` to `grown`, and back, than by staying.

    GPUs that stay for ever (infinite) pay for anybody whom they make faster.
    """
    if stay_s == math.inf:
        return grown > now
    return work_if_grown(grown, stay_s, change_s) > now * stay_s
