"""Objects with state_dict and load_state_dict in a TorchState: saved, restored and handed over in place.

Horovod does so with models, optimizers and samplers. Everything else it keeps as it is, and sends as a
pickled copy. A copy of a learning-rate scheduler has a copy of the optimizer, and sets the rate of that one.
A restore does not bring it back. So schedulers, gradient scalers and the like go by their state_dict, and so
do lists and dictionaries of them.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

LEFT_OUT = "(learning-rate schedulers and gradient scalers)"
"""The name of the handler in a state of what the script keeps beside it: no argument can be called so."""
_IMMUTABLE = frozenset({type(None), bool, int, float, complex, str, bytes})


def is_stateful(value: Any) -> bool:
    """Whether it has what PyTorch calls Stateful."""
    if isinstance(value, type):
        return False
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def capture(value: Any) -> Any:
    """Its state_dict; of a list, tuple or dictionary, the same of each."""
    if type(value) is dict:
        return {key: capture(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return [capture(each) for each in value]
    return value.state_dict()


def put_back(value: Any, captured: Any) -> None:
    """Load what `capture` gave. `captured` stays as it is."""
    if type(value) is dict:
        for key, each in value.items():
            put_back(each, captured[key])
    elif type(value) in (list, tuple):
        for each, its in zip(value, captured, strict=True):
            put_back(each, its)
    elif hasattr(value, "param_groups"):
        load_optimizer(value, captured)
    elif hasattr(value, "named_parameters"):
        value.load_state_dict(captured)
    else:
        value.load_state_dict(copy.deepcopy(captured))
        if hasattr(value, "_per_optimizer_states"):
            # A gradient scaler that was interrupted takes gradients for unscaled that are not.
            value._per_optimizer_states.clear()


def load_optimizer(optimizer: Any, state: Any) -> None:
    """`optimizer.load_state_dict(state)`, with the parameter groups that there are.

    PyTorch puts new dictionaries in their place. Horovod's optimizer shares them with the optimizer that it
    was made of, which may be the one that a scheduler knows.
    """
    groups = optimizer.param_groups
    optimizer.load_state_dict(state)
    for group, loaded in zip(groups, optimizer.param_groups, strict=True):
        if group is not loaded:
            group.clear()
            group.update(loaded)
    optimizer.param_groups = groups


def patch(module: ModuleType) -> None:
    """Hook horovod.torch.elastic.state, after which a TorchState keeps such objects in handlers, too."""
    known = module._get_handler

    class StatefulHandler(module.SamplerStateHandler):  # type: ignore[misc,name-defined]
        """Synchronized as samplers are."""

        def __init__(self, value: Any) -> None:
            self.value = value
            self.save()

        def save(self) -> None:
            self._saved = copy.deepcopy(capture(self.value))

        def restore(self) -> None:
            put_back(self.value, self._saved)

        def state_dict(self) -> Any:
            return capture(self.value)

        def load_state_dict(self, state: Any) -> None:
            put_back(self.value, state)

    def get_handler(value: Any) -> Any:
        handler = known(value)
        if handler is None and _all_stateful(value):
            handler = StatefulHandler(value)
        return handler

    def restore(self: Any) -> None:
        load_optimizer(self.value, self._saved_optimizer_state)

    module._get_handler = get_handler  # type: ignore[attr-defined]
    module.StatefulHandler = StatefulHandler  # type: ignore[attr-defined]
    module.OptimizerStateHandler.restore = restore


def handler_of(value: Any) -> Any:
    """A handler of Horovod's for a stateful `value`; after `patch`."""
    return sys.modules["horovod.torch.elastic.state"].StatefulHandler(value)


def _all_stateful(value: Any) -> bool:
    each = list(leaves(value))
    return bool(each) and all(map(is_stateful, each))


def leaves(value: Any) -> Iterator[Any]:
    """What lists, tuples and dictionaries hold, through all of them; of anything else, itself."""
    if type(value) is dict:
        for each in value.values():
            yield from leaves(each)
    elif type(value) in (list, tuple):
        for each in value:
            yield from leaves(each)
    else:
        yield value


def mixed(value: Any) -> Any:
    """A scheduler, optimizer or the like among other things in a list or dictionary; or None."""
    if type(value) not in (dict, list, tuple):
        return None
    return next((each for each in leaves(value) if is_stateful(each)), None)


def copied(value: Any) -> Any:
    """A copy of numbers, text, tensors and containers of them; other objects as they are.

    Horovod saves attributes by reference: a list that training appends to would not go back to the commit.
    """
    if type(value) in _IMMUTABLE:
        return value
    if type(value) is dict:
        return {key: copied(each) for key, each in value.items()}
    if type(value) in (list, tuple, set):
        immutable = _IMMUTABLE.issuperset(map(type, value))
        return type(value)(value if immutable else map(copied, value))
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.Tensor:
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value
