"""Workers take over another worker's state in few messages: rank 0's, or that of the giver by state_route.py.

A change's pause is at best one broadcast of the model. Horovod broadcasts model, optimizer, its options,
samplers and attributes one after the other, each small tensor by itself. It lets an optimizer without state
step once with zero gradients, so that the optimizer has a state. That moves the weights if there is weight
decay. Here, the state travels in few messages (state_messages.py).

Models and optimizers keep their tensors if the received tensors fit. The values are written into the tensors,
so that views of them and Horovod's hooks stay valid. In a broadcast, no worker skips that because it has the
same values already: running means of batch normalisation, for example, differ from rank to rank.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from horovod.common.elastic import ObjectState, State
from horovod.common.exceptions import HorovodInternalError
from horovod.torch import mpi_ops
from horovod.torch.elastic import state as horovods

from horovod_elastic.core.interface import TensorTransport
from horovod_elastic.worker import state_messages
from horovod_elastic.worker.parking import NotParked, ParkedState
from horovod_elastic.worker.state_messages import StatePart, with_peers
from horovod_elastic.worker.state_parts import orders_of, parts_of, settle, small, synced_by_horovod

ROOT = 0


def broadcast(state: State, root: int = ROOT) -> None:
    """Do what `state.sync()` does, by all workers at the same time. A state with its own sync uses that.

    `root`: the rank whose state all take over. A sync of its own takes rank 0's.
    """
    if not synced_by_horovod(state):
        state.sync()
        return
    parts = parts_of(state)
    theirs = _from_root_to_all(parts, root, in_place=True)
    if theirs is not None:
        state_messages.take_over(parts, theirs)
    settle(state, parts)


def resume(state: State, parked: ParkedState | None) -> None:
    """Take over the parked state, by all workers at the same time. Rank 0 reads it, and has it as `parked`.

    Raises HorovodInternalError if a peer or the base is gone.
    """
    parts = parts_of(state)

    def carry(message: torch.Tensor, name: str) -> Callable[[], object]:
        read = None if parked is None else parked.carry(message, name)
        return read if read is not None and mpi_ops.size() == 1 else _from_root(ROOT, message, name)

    try:
        theirs = state_messages.received([part.room() for part in parts], carry)
    except NotParked as error:
        raise HorovodInternalError(error) from error
    state_messages.take_over(parts, theirs)
    settle(state, parts)


def can_hand_over(state: State) -> bool:
    """Whether `hand_over` knows the parts of the state. Other states have a sync of their own."""
    return synced_by_horovod(state)


@dataclass(frozen=True, slots=True)
class Shared:
    """Rank 0's samplers and attributes, which take effect once `hand_over` is called."""

    parts: Sequence[StatePart]
    small: Sequence[StatePart]
    """The parts that are shared: samplers and attributes."""
    theirs: Sequence[Any] | None
    """The content of the shared parts that rank 0 has sent; None on rank 0."""


def share(state: State) -> Shared:
    """Send rank 0's samplers and attributes, which are small and may differ, to all ranks.

    All workers call it at the same time. The state does not change yet: if a worker is lost meanwhile, all go
    back to the state that they have saved. Raises HorovodInternalError if a peer is gone.
    """
    parts = parts_of(state)
    few = small(parts)
    return Shared(parts, few, _from_root_to_all(few, ROOT, in_place=False))


def hand_over(
    state: State, shared: Shared, transport: TensorTransport, *, source: int | None, receivers: Sequence[int]
) -> None:
    """Send models and optimizers from workers that have them to workers that do not.

    All workers call it at the same time. `source`: the rank that gives them to this rank; None if this rank
    has them. `receivers`: the ranks to which this rank gives them. Raises HorovodInternalError if a peer is
    gone.
    """
    if shared.theirs is not None:
        state_messages.take_over(shared.small, shared.theirs)
    rest: list[StatePart] = [part for part in shared.parts if part not in shared.small]
    rest.append(orders_of(state))
    if source is not None:
        state_messages.receive(rest, functools.partial(_from, transport, source))
    elif receivers:
        carry = functools.partial(_to, transport, receivers)
        state_messages.send(rest, carry, from_gpus=_nccl())
    settle(state, shared.parts)


def carry_on(state: State) -> None:
    """Go on without `broadcast` if workers have left and none is new: all have the same state already.

    Horovod does so, too. Samplers divide the rest of the epoch among the remaining workers, which Horovod's
    samplers forget.
    """
    if not synced_by_horovod(state):
        state.sync()
        return
    settle(state, parts_of(state))


def save_after_carry_on(state: State) -> None:
    """Save the changes of `carry_on` and reset callbacks, but not the tensors, which the boundary has saved.

    Workers that had the tensors before call it after `hand_over`, too.
    """
    if not synced_by_horovod(state) or type(state).save is not horovods.TorchState.save:
        state.save()
        return
    for handler in state._handlers.values():
        save = type(handler).save
        if save is horovods.OptimizerStateHandler.save:  # learning rates and the like
            groups = handler.value.state_dict()["param_groups"]
            handler._saved_optimizer_state["param_groups"] = copy.deepcopy(groups)
        elif save is not horovods.ModelStateHandler.save:
            handler.save()
    ObjectState.save(state)


def keep_saved_apart(state: State) -> None:
    """Copy saved optimizer states after `state.restore()`: an optimizer writes to tensors that it loads."""
    for handler in getattr(state, "_handlers", {}).values():
        if type(handler).restore is horovods.OptimizerStateHandler.restore:
            handler._saved_optimizer_state = copy.deepcopy(handler._saved_optimizer_state)


# --- how messages travel ----------------------------------------------------------------------------------


def _from_root_to_all(parts: Sequence[StatePart], root: int, *, in_place: bool) -> Sequence[Any] | None:
    """Send the root's content of these parts to all, `in_place` where it fits.

    Returns the content; None on the root.
    """
    carry = functools.partial(_from_root, root)
    if mpi_ops.rank() != root:
        return state_messages.received([part.room() if in_place else None for part in parts], carry)
    if mpi_ops.size() > 1:
        state_messages.send(parts, carry, from_gpus=_nccl())
    return None


def _from_root(root: int, message: torch.Tensor, name: str) -> Callable[[], object]:
    return functools.partial(mpi_ops.synchronize, mpi_ops.broadcast_async_(message, root, name=name))


def _to(
    transport: TensorTransport, receivers: Sequence[int], message: torch.Tensor, name: str
) -> Callable[[], object]:
    return _as_horovods(with_peers(transport.send, message, receivers))


def _from(transport: TensorTransport, source: int, message: torch.Tensor, name: str) -> Callable[[], object]:
    return _as_horovods(with_peers(transport.receive, message, [source]))


def _as_horovods(wait: Callable[[], object]) -> Callable[[], None]:
    """`wait`, with the error that Horovod's layer raises where a collective fails."""

    def wait_as_horovod() -> None:
        try:
            wait()
        except RuntimeError as error:
            raise HorovodInternalError(error) from error

    return wait_as_horovod


def _nccl() -> bool:
    return bool(mpi_ops.nccl_built())
