"""The speeds of two jobs on one GPU, from the share of the time in which each keeps a GPU of its own busy.

AntMan (Xiao et al., OSDI 2020) prints figures of two pairs. The rules between them are ours: they are the
simplest that give these figures. All speeds are relative to the speed of a job alone on its GPU.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


class Control(enum.Enum):
    """The control of the kernels that the second job launches."""

    GATED = "gated"
    """AntMan's: the second job launches kernels only while the owner leaves the GPU idle."""
    PACKED = "packed"
    """Gandiva's packing: nobody controls anything, and both jobs compete."""


UTILIZATIONS: Final[Mapping[str, float]] = {
    "resnet50": 0.908,
    "espnet": 0.483,
    "gcn": 0.097,
    "vgg16": 0.7,
    "superresolution": 0.75,
    "bert": 0.9,
    "graphsage": 0.3,
    "din": 0.3,
    "widedeep": 0.2,
}
"""By model of AntMan's table 3: the share of the time in which it keeps a GPU of its own busy.

The paper prints none. The first three follow from three printed figures by the rules below: ResNet-50 keeps
57% of its speed beside ESPnet, ESPnet takes 105.2 instead of 20.1 min packed with ResNet-50 (section 5.1),
and GCN takes 17.9 instead of 17.0 min beside ResNet-50 (table 2). The others are ours."""

_INTERFERENCE: Final = 0.0673
"""The part by which steps of an owner take longer, for each part of the time that the second job uses.

It is such that ESPnet takes 20.8 instead of 20.1 min beside ResNet-50 (section 5.1). ResNet-50 beside GCN
then takes 0.6% longer; 0.8% is printed (table 2)."""
_HUNGER: Final = 4
"""Packed jobs get GPU time in proportion to this power of their utilization: ours. From 4 on, ESPnet gets
nothing but what ResNet-50 leaves, as in section 5.1."""
_LEAST: Final = 0.01
"""The least speed of a job to which the other one leaves nothing: ours, so that every job ends."""


@dataclass(frozen=True, slots=True)
class PairSpeeds:
    """The speeds of two jobs on one GPU."""

    owner: float
    guest: float
    """The speed of the job in the second seat."""


def utilization_of(model: str, otherwise: float) -> float:
    """The utilization of a model by its name, as in "ResNet-50" or "resnet50"; `otherwise` for models that
    are not known."""
    return UTILIZATIONS.get("".join(filter(str.isalnum, model.casefold())), otherwise)


def speeds_of(owner: float, guest: float, control: Control) -> PairSpeeds:
    """The speeds of two jobs with these utilizations, 0 to 1."""
    if control is Control.PACKED:
        return PairSpeeds(_packed(owner, guest), _packed(guest, owner))
    idle = max(_LEAST, 1 - owner)
    busy = min(guest, idle)
    return PairSpeeds(1 / (1 + _INTERFERENCE * busy), _part(busy, guest))


def _packed(own: float, other: float) -> float:
    """The speed of a job that competes with another one: it gets its share, or what the other leaves."""
    if own + other <= 1:
        return 1.0
    share = own**_HUNGER / (own**_HUNGER + other**_HUNGER)
    return max(_LEAST, _part(min(own, max(share, 1 - other)), own))


def _part(busy: float, wanted: float) -> float:
    return busy / wanted if wanted else 1.0
