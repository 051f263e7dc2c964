"""What `flexo checkpoint` writes of a script of torch.distributed: all that workers hand over, by name.

Names are those by which the script has declared an object (flexo.elastic). Other objects are called by their
kind, such as "model" and "optimizer", with a number if there are several: "model_1", "model_2".
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from horovod_elastic import declared, stateful
from horovod_elastic.checkpoints import Contents
from horovod_elastic.worker import left_out
from horovod_elastic.worker.ddp.captured import Captured


def contents(captured: Captured, position: Mapping[str, int]) -> Contents:
    """The contents at a boundary. `position`: where the training is."""
    units, wrapped = (
        declared.declared(),
        {id(model): getattr(model, "module", model) for model in captured.models()},
    )
    values = {unit.name: unit.own() for unit in units if unit.value is None}
    named = {unit.name: wrapped.get(id(unit.value), unit.value) for unit in units if unit.value is not None}
    chosen = {id(each) for each in named.values()}
    by_kind: dict[str, list[Any]] = defaultdict(list)
    for kind, each in _found(captured):
        if id(each) not in chosen:
            by_kind[kind].append(each)
    for kind, found in by_kind.items():
        for each in found:
            named[_free_name(kind, named, several=len(found) > 1)] = each
    state = {name: stateful.capture(each) for name, each in named.items()}
    return Contents(state, {**position, **values})


def _free_name(kind: str, taken: Mapping[str, object], *, several: bool) -> str:
    numbered = (f"{kind}_{number}" for number in itertools.count(1))
    names = numbered if several else itertools.chain([kind], numbered)
    return next(name for name in names if name not in taken)


def _found(captured: Captured) -> list[tuple[str, Any]]:
    """The objects that flexo has found itself, with their kinds."""
    models = [("model", getattr(model, "module", model)) for model in captured.models()]
    averaged = [("averaged", each) for each in captured.averaged_models()]
    optimizers = [("optimizer", each) for each in captured.optimizers()]
    others = [("scaler" if hasattr(each, "unscale_") else "scheduler", each) for each in left_out.made()]
    return [*models, *averaged, *optimizers, *others]
