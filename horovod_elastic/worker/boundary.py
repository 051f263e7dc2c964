"""The work of a training thread at mini-batch boundaries and between generations, besides training.

The thread carries out the leader's tasks, sets the aggregate batch and warms a newcomer up. It tells the
script about this work through horovod_elastic.training.
"""

from __future__ import annotations

import enum
import functools
from typing import TYPE_CHECKING, Any

from flexo_protos.v1 import workers_pb2
from horovod_elastic import checkpoints, training
from horovod_elastic.trace import say
from horovod_elastic.worker import checkpoint_task, gradients, left_out, replicas, state_route
from horovod_elastic.worker.session import Session
from horovod_elastic.worker.state_route import Origin

if TYPE_CHECKING:
    from horovod_elastic.worker.parking import Parking
    from horovod_elastic.worker.state_messages import Carry


def attach(session: Session, state: Any) -> None:
    """Enter the training function: from now on, notify_end_of_minibatch() means the boundary of `state`."""

    from horovod_elastic.worker import parking  # imports PyTorch

    so_far = 0

    def boundary(samples: int) -> None:
        nonlocal so_far
        so_far += samples
        if so_far and not gradients.waiting(state):
            session.samples_per_step, so_far = so_far, 0
        state.check_host_updates()

    training.attach(boundary)
    state._flexo_parking = parking.of_job(session)
    left_out.attach(state)
    replicas.attach(state)


def is_deferred(state: Any) -> bool:
    """Whether this boundary does not count: an optimizer is accumulating gradients.

    All workers give the same answer, because they take the optimizer's steps together.
    """
    name = gradients.waiting(state)
    if not name:
        _deferred.counts()
        return False
    if what := _deferred.another(state, name):
        say(what)
    return True


_deferred = gradients.Deferred()


def warm_up(state: Any) -> None:
    """Warm a newcomer up: run the script's pass on throw-away data, if it has one, and make spare memory."""
    # This module imports Horovod, as do those below.
    from horovod_elastic.worker import spare_memory

    training.warm_up(state)
    spare_memory.make(state)


def begin(session: Session, state: Any, *, origin: Origin, sync: bool, resumes: bool = False) -> None:
    """Begin a generation: workers that lack the state get it, and all workers take the generation's batch.

    `origin`: how this worker comes into the generation. Without `sync`, no worker is new, and all have the
    state. `resumes`: all workers are new, and go on from the parked state.
    """
    # These modules import Horovod, which is just being imported when this module is.
    from horovod_elastic.worker import spare_memory, state_sync

    if resumes:
        commits, taken = _resume(session, state), _Taken.FROM_ALL
    elif sync:
        commits, taken = _take_over(session, state, origin)
    else:
        state_sync.carry_on(state)
        commits, taken = session.commits, _Taken.NOT
    training.generation_begins(session.aggregate_of_this_generation())
    # All workers wait for a worker that was given the state. So that worker saves the state only with its
    # first commit. Until then the givers have it. Before the first commit of all, the leader could not tell
    # givers from receivers.
    unsaved = taken is _Taken.FROM_ONE and commits > 0
    if unsaved or taken is _Taken.NOT:
        state_sync.save_after_carry_on(state)
    else:
        state.save()
    spare_memory.drop(state, but_to_save=unsaved)
    session.samples_per_step = training.samples_in_a_step() or session.samples_per_step
    replicas.begins()
    session.begins(commits, saved=not unsaved)


class _Taken(enum.Enum):
    """The way in which a worker got the state that it has in this generation."""

    NOT = enum.auto()
    """The worker had the state before."""
    FROM_ONE = enum.auto()
    """A staying worker gave the state to this worker, which is new."""
    FROM_ALL = enum.auto()
    """One worker's state went to all others. Perhaps no other worker had it before."""


def _take_over(session: Session, state: Any, origin: Origin) -> tuple[int, _Taken]:
    """Take the state over, by all workers at the same time.

    Returns the commits of the state that all workers have now, and how this worker got it.
    """
    from horovod_elastic.worker import state_sync

    assert session.core is not None
    transport = session.core.transport()
    able = transport is not None and state_sync.can_hand_over(state)
    on_horovods_library = transport is None
    asked = state_route.ask(origin, session.commits, can_hand_over=able, may_be_wrong=on_horovods_library)
    shared = state_sync.share(state) if able else None  # while the others answer
    route = asked()
    if transport is None or shared is None or not route.givers:
        state_sync.broadcast(state, route.root)
        return route.commits, _Taken.FROM_ALL
    own = session.rank
    source = route.givers.get(own)
    state_sync.hand_over(state, shared, transport, source=source, receivers=route.receivers(own))
    return route.commits, _Taken.NOT if source is None else _Taken.FROM_ONE


# --- the parked state of an opportunistic job -------------------------------------------------------------


def cannot_park(state: Any) -> str:
    """Why the state of an opportunistic job cannot be parked; "" if it can, or in other jobs."""
    if state._flexo_parking is None:
        return ""
    from horovod_elastic.worker import state_parts

    return state_parts.obstacle(state)


def park_copy(session: Session, state: Any) -> None:
    """Park a copy of the state that was just saved, if it is time for one."""
    parking: Parking | None = state._flexo_parking
    if parking is not None and parking.due():
        parking.copy(_head(session), functools.partial(_write, state))


def park(session: Session, state: Any) -> None:
    """Park the state that was just saved, because training pauses. All workers have the same state."""
    parking: Parking | None = state._flexo_parking
    if parking is not None and session.rank == 0:
        parking.now(_head(session), functools.partial(_write, state))


def _head(session: Session) -> workers_pb2.ParkedHead:
    return workers_pb2.ParkedHead(worker_id=session.worker_id, commits=session.commits, loader=-1)


def _write(state: Any, carry: Carry) -> None:
    from horovod_elastic.worker import state_messages, state_parts

    state_messages.send(state_parts.parts_of(state), carry, from_gpus=False)


def _resume(session: Session, state: Any) -> int:
    """Take the parked state over, by all workers at the same time; return its commits."""
    from horovod.common.exceptions import HorovodInternalError

    from horovod_elastic.worker import state_sync

    parking: Parking = state._flexo_parking
    try:
        parked = parking.fetch() if session.rank == 0 else None
    except RuntimeError as error:  # all workers wait for the next generation, as for a lost one
        raise HorovodInternalError(error) from error
    origin, commits = (Origin.NEW, 0) if parked is None else (Origin.BACK, int(parked.head.commits))
    route = state_route.ask(origin, commits, can_hand_over=False)()
    session.lacks_state()
    state_sync.resume(state, parked)
    return route.commits


def restore(state: Any) -> None:
    """Go back to the last commit."""
    from horovod_elastic.worker import state_sync

    state.restore()
    state_sync.keep_saved_apart(state)
    gradients.drop(state)


def run_tasks(session: Session, state: Any) -> None:
    """Carry out the leader's tasks."""
    checkpoint_task.run_all(session, functools.partial(checkpoints.write, state))
