"""Whether a resize pays within the time that its GPUs are likely to stay (Amoeba, section 3.2).

Wu et al., "Elastic deep learning in multi-tenant GPU cluster": a job on 4 GPUs that takes 2 more for 120 s
and stands still for 30 s each way does 6 * 60 = 360 GPU s of work instead of 480; it pays from 180 s on.
"""

from __future__ import annotations

import math


def work_if_grown(grown: float, stay_s: float, change_s: float) -> float:
    """Work done in `stay_s` at rate `grown`, where growing and shrinking back each stop it for `change_s`."""
    return grown * max(0.0, stay_s - 2 * change_s)


def pays(now: float, grown: float, stay_s: float, change_s: float) -> bool:
    """Whether more is done in `stay_s` by growing from rate `now` to `grown`, and back, than by staying."""
    return work_if_grown(grown, stay_s, change_s) > now * stay_s


def break_even_s(now: float, grown: float, change_s: float) -> float:
    """How long GPUs have to stay that growing neither wins nor loses; infinite where it is not faster."""
    return 2 * change_s * grown / (grown - now) if grown > now else math.inf
