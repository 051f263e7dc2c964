"""The state of a script goes from worker to worker: who has it, who gives it to whom, and its parts.

In a job with units, a worker receives the state of its place in the unit. In reproducible mode, a worker that
takes a rank over receives what belongs to that rank alone, too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from horovod_elastic.trace import say
from horovod_elastic.worker import state_messages, state_route
from horovod_elastic.worker.ddp.captured import Captured, RandomNumbers
from horovod_elastic.worker.ddp.iteration import Iteration
from horovod_elastic.worker.ddp.private_state import PrivateStates
from horovod_elastic.worker.ddp.rates import ScaledRates
from horovod_elastic.worker.ddp.script_variables import ScriptVariables
from horovod_elastic.worker.state_messages import Carry, StatePart, with_peers
from horovod_elastic.worker.state_route import Member, Origin, Route

if TYPE_CHECKING:
    from horovod_elastic.worker.ddp.elastic_group import ElasticGroup
    from horovod_elastic.worker.parking import ParkedState
    from horovod_elastic.worker.participant_state import Called
    from horovod_elastic.worker.session import Session

NOWHERE = -1, -1
_NOT_ALIKE = -1
"""Stands for the digest of random numbers that differ from worker to worker."""
LOST = (
    "a virtual worker was lost with its random numbers: from here on, results may differ in their bits from"
    " those of a run without this loss"
)


@dataclass(frozen=True, slots=True)
class Target:
    """Where those workers meet that have the state.

    `position`: in the training loop. `loader`: the number of the loader with which they train; -1: none.
    """

    position: tuple[int, int]
    loader: int


class Handover:
    """The hand-over of one worker's state (see the module). `rates`: the learning rates that flexo scales."""

    def __init__(
        self,
        session: Session,
        group: ElasticGroup,
        captured: Captured,
        variables: ScriptVariables,
        rates: ScaledRates,
    ) -> None:
        self.origin = Origin.NEW
        """Whether this worker has the state of the others."""
        self._session = session
        self._group = group
        self._captured = captured
        self._variables = variables
        self._rates = rates
        self._private = PrivateStates() if group.adds_in_order else None
        self._route: Route | None = None
        """Who gives the state to whom; None if all have it."""
        self._movers: list[int] = []
        """The ranks that newcomers take over, in reproducible mode."""
        self._taken: list[Any] | None = None
        """What belongs to the rank alone that this worker has taken over."""
        self._same_random_numbers = False
        self._resumes = False
        """Whether all go on from a parked state."""
        self._parked: ParkedState | None = None
        """The state from the base, on the worker that reads it for all."""
        self._bring_back: Callable[[], None] | None = None
        """What undoes the changes of steps that do not count; None if there were none."""

    # --- before the workers are in the same place -------------------------------------------------------

    def begin(self, origin: Origin) -> None:
        """Come into a generation. A worker that goes back remembers what a muted step may change."""
        self.origin, self._route = origin, None
        if origin is Origin.BACK and self._bring_back is None:
            self._bring_back = self._captured.memento()

    def found(self) -> None:
        """Compare the founders' random numbers, for a state that is parked. Raises RuntimeError."""
        told = self._group.exchange([_random_digest()])
        self._same_random_numbers = len({digest for (digest,) in told}) == 1

    def meet(
        self, position: tuple[int, int], loader: int, fetch: Callable[[], ParkedState] | None = None
    ) -> Target:
        """Find out who has the state, and where its owners meet. Raises RuntimeError if a worker is gone.

        `position`: that of this worker's next call; `loader`: the number of the loader with which it trains.
        `fetch`: returns the parked state from which all go on, because nobody has the state. Rank 0 reads it,
        and says what its owner would say.
        """
        core, place = self._session.core, self._session.place
        assert core is not None
        size, at = self._unit()
        first_of_node, has_transport = place.rank - place.local_rank, core.transport() is not None
        own = [
            *(self.origin, self._session.commits, first_of_node, has_transport),
            *(NOWHERE if self.origin is Origin.NEW else position),
            *(_random_digest(), loader),
        ]
        self._parked = fetch() if fetch is not None and place.rank == 0 else None
        if self._parked is not None:
            head = self._parked.head
            random = 1 if head.random_numbers else _NOT_ALIKE
            position = head.place, head.given
            own = [Origin.BACK, head.commits, first_of_node, False, *position, random, head.loader]
        told = self._group.exchange(own)
        origins = _by_units([Origin(each[0]) for each in told], size)
        if origins[place.rank] is Origin.NEW:
            self.origin, self._bring_back = Origin.NEW, None
        members = [Member(o, b, c, bool(d)) for o, (_, b, c, d, *_) in zip(origins, told, strict=True)]
        self._route = state_route.decide(members[at::size], any_root=True, spread=self._private is not None)
        self._movers = [rank for rank, each in enumerate(members) if each.origin is Origin.NEW]
        digests = [each[6] for each in told][at::size]
        its = [each for each, o in zip(digests, origins[at::size], strict=True) if o is not Origin.NEW]
        self._same_random_numbers = len(set(its)) == 1 and _NOT_ALIKE not in its
        self._resumes = fetch is not None
        old = [each for each, o in zip(told, origins, strict=True) if o is not Origin.NEW]
        farthest = max(((each[4], each[5]) for each in old), default=position)
        return Target(farthest, (old or told)[0][7])

    # --- where the workers are in the same place --------------------------------------------------------

    def compare(self, layout: str) -> None:
        """Compare what must be the same on all workers of a place. Raises RuntimeError if it is not.

        The leader has done so before, but a newcomer may have been in another epoch then.
        """
        if self._route is None:
            return
        size, at = self._unit()
        if len({each for (each,) in self._group.exchange([_digest(layout.encode())])[at::size]}) > 1:
            raise RuntimeError("the models or optimizers are not the same on all workers")

    def carry(self, iteration: Iteration | None) -> int:
        """Receive the state or give it; return the used samples of the iteration that goes on.

        Raises RuntimeError if a worker is gone.
        """
        if self._bring_back is not None:
            self._bring_back()
        position = _Position(iteration)
        parts = self._parts(position)
        self._taken = self._take_rank_over()
        self._variables.takes(self.origin is Origin.NEW and self._taken is None)
        self._synchronize(parts)
        return position.start()

    def park(self, iteration: Iteration | None, carry: Carry) -> None:
        """Send the state to the base. Raises the errors of `carry`, RuntimeErrors."""
        self._variables.takes(False)
        state_messages.send(self._parts(_Position(iteration)), carry, from_gpus=False)

    @property
    def parks_random_numbers(self) -> bool:
        """Whether random numbers are a part of the state."""
        return self._same_random_numbers

    def _parts(self, position: _Position) -> list[StatePart]:
        gathers = _GathersSamples(self._group)
        parts: list[StatePart] = [*self._captured.parts(), self._rates, gathers, position, self._variables]
        return [*parts, RandomNumbers()] if self._same_random_numbers else parts

    def settle(self, iteration: Iteration | None) -> int:
        """Have what this worker has received take effect, once it is at its place; return the commits."""
        if self._taken is not None:
            self._variables.takes(True)
            state_messages.take_over(self._of_rank(iteration), self._taken)
        self.origin, self._bring_back, self._taken = Origin.STAYS, None, None
        return self._session.commits if self._route is None else self._route.commits

    def _synchronize(self, parts: list[StatePart]) -> None:
        """Give the parts to those who lack them, or receive them. Raises RuntimeError if a peer is gone."""
        assert self._session.core is not None
        transport, route, rank = self._session.core.transport(), self._route, self._session.rank
        if self._resumes:
            self._move(parts, self._from_base, receives=True)
            self._resumes, self._parked = False, None
            return
        size, at = self._unit()
        if transport is None or route is None or self._session.size == size:
            return
        rank //= size  # of those who have the same part of the state
        if not route.givers:
            carry = functools.partial(self._from_root, route.root)
            self._move(parts, carry, receives=rank != route.root)
        elif rank in route.givers:
            peers = [route.givers[rank] * size + at]
            self._move(parts, lambda each, _: with_peers(transport.receive, each, peers), receives=True)
        elif receivers := route.receivers(rank):
            peers = [each * size + at for each in receivers]
            self._move(parts, lambda each, _: with_peers(transport.send, each, peers), receives=False)

    def _move(self, parts: list[StatePart], carry: state_messages.Carry, *, receives: bool) -> None:
        if receives:
            self._session.lacks_state()
            state_messages.receive(parts, carry)
        else:
            state_messages.send(parts, carry, from_gpus=self._group.is_on_gpus)

    def _from_base(self, message: torch.Tensor, name: str) -> Callable[[], object]:
        """Rank 0 reads the message, and passes it on to all others."""
        if self._parked is not None:
            self._parked.carry(message, name)
        return _done if self._session.size == 1 else self._from_root(0, message, name)

    def _from_root(self, root: int, message: torch.Tensor, _: str) -> Callable[[], object]:
        return self._group.of_alike.broadcast_from(root, message)

    def _unit(self) -> tuple[int, int]:
        """The number of workers that have the state together, and this one's place among them."""
        unit = self._group.unit
        return (1, 0) if unit is None else (unit.size, unit.place)

    # --- reproducible mode ------------------------------------------------------------------------------

    def give_up_ranks(self, word: Called, iteration: Iteration | None) -> None:
        """Give what belongs to a rank alone to a worker that stays, if the rank moves."""
        if self._private is None:
            return
        assert self._session.core is not None
        own = self._of_rank(iteration) if word.leave or word.aside else None
        if (transport := self._session.core.transport()) is not None:
            with contextlib.suppress(RuntimeError):  # a worker is gone: the next generation finds out
                self._private.give_up_ranks(self._group, transport, own, self._session.commits)

    def _of_rank(self, iteration: Iteration | None) -> list[StatePart]:
        """What belongs to this rank alone. Random numbers are last: to begin an iteration takes some."""
        return [_Beginning(iteration), *self._captured.private(), self._variables, RandomNumbers()]

    def _take_rank_over(self) -> list[Any] | None:
        """Carry the states of ranks that have moved; that of this rank, if it is one. Raises RuntimeError."""
        assert self._session.core is not None
        transport, route = self._session.core.transport(), self._route
        if self._private is None or transport is None or route is None:
            return None
        rank = self._session.rank
        taken = self._private.take_ranks_over(self._group, transport, self._movers, route.commits, rank)
        lacks_it = self.origin is Origin.NEW and taken is None
        if lacks_it if route.givers else rank == route.root:
            say(LOST)
        return taken


def _done() -> None:
    """Do nothing: a worker that is alone has what it has read."""


def _by_units(origins: list[Origin], size: int) -> list[Origin]:
    """The origins, with a unit new as a whole: one of its workers may have got the state, and another not."""
    for unit in range(0, len(origins), size):
        if Origin.NEW in origins[unit : unit + size]:
            origins[unit : unit + size] = [Origin.NEW] * size
    return origins


class _Position(StatePart):
    """How many samples of the epoch are used, and its order where newcomers cannot find that themselves."""

    def __init__(self, iteration: Iteration | None) -> None:
        self._iteration = iteration
        self._theirs: int | None = None

    def own(self) -> Any:
        if self._iteration is None:
            return 0, None
        return self._iteration.start, self._iteration.order_told()

    def take_over(self, theirs: Any) -> None:
        self._theirs, order = theirs
        if self._iteration is not None:
            self._iteration.hear_order(order)

    def start(self) -> int:
        if self._theirs is None:
            return 0 if self._iteration is None else self._iteration.start
        return self._theirs


class _GathersSamples(StatePart):
    """Whether the script gathers something for each sample (ElasticGroup.gathers_samples)."""

    def __init__(self, group: ElasticGroup) -> None:
        self._group = group

    def own(self) -> Any:
        return self._group.gathers_samples

    def take_over(self, theirs: Any) -> None:
        self._group.gathers_samples = theirs


class _Beginning(StatePart):
    """How the present iteration over the training loader has begun."""

    def __init__(self, iteration: Iteration | None) -> None:
        self._iteration = iteration

    def own(self) -> Any:
        return None if self._iteration is None else self._iteration.begun_with()

    def take_over(self, theirs: Any) -> None:
        if self._iteration is not None and theirs is not None:
            self._iteration.begin_like(theirs)


def _random_digest() -> int:
    """A digest of the generators' states, to tell whether all workers have the same."""
    states = RandomNumbers().own()
    text = pickle.dumps({**states, "torch": [each.numpy().tobytes() for each in states["torch"].values()]})
    return _digest(text)


def _digest(content: bytes) -> int:
    """A digest as a number that can be exchanged."""
    return int.from_bytes(hashlib.sha256(content).digest()[:7], "big")
