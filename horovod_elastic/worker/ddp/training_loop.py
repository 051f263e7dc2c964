"""Finds the boundaries of a script's training loop, and leads the script over them into the next generation.

The script hears of nothing. It calls the loader for its next batch and the optimizer for its step, and both
calls come here. A boundary is a call for a batch of the training loader after a step. All workers are at the
same line of the script then, so that a newcomer may join them there: it runs the script alone until it is at
that call, too. Until then, its batches are for practice and its collectives those of a group of one. In a
script without a DataLoader, the end of a step is a boundary.

If a worker is lost, some workers may have taken a step that others have not. Nobody can go back. So those who
lack the step run on, muted, to the call for a batch at which the most advanced worker arrives, and receive
its state there. Steps of muted workers have no effect. The samples of such a step are dealt out again.
"""

from __future__ import annotations

import enum
import functools
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from flexo_protos.v1 import workers_pb2
from horovod_elastic import checkpoints, declared, progress
from horovod_elastic.checkpoints import CheckpointError, CheckpointInfo
from horovod_elastic.trace import say
from horovod_elastic.worker import checkpoint_task, left_out, parking
from horovod_elastic.worker.ddp import checkpoint, obstacles, torchs_own, units
from horovod_elastic.worker.ddp.captured import Captured
from horovod_elastic.worker.ddp.counting_loops import CountingLoops
from horovod_elastic.worker.ddp.deal import BatchRule
from horovod_elastic.worker.ddp.epochs import Epochs
from horovod_elastic.worker.ddp.handover import NOWHERE, Handover, Target
from horovod_elastic.worker.ddp.iteration import MOST_ITERATIONS, Iteration
from horovod_elastic.worker.ddp.loaders import Loader, Loaders
from horovod_elastic.worker.ddp.rates import RateRule, ScaledRates
from horovod_elastic.worker.ddp.script_variables import ScriptVariables
from horovod_elastic.worker.ddp.sources import sampler_of
from horovod_elastic.worker.ddp.units import UnevenSampler
from horovod_elastic.worker.state_route import Origin

if TYPE_CHECKING:
    from horovod_elastic.worker.ddp.elastic_group import ElasticGroup
    from horovod_elastic.worker.ddp.units import Unit
    from horovod_elastic.worker.parking import Parking
    from horovod_elastic.worker.participant_state import Called
    from horovod_elastic.worker.session import Session

FIRST_ROUNDS = 3
"""Rounds of the training loop, each with a step, before a worker can be resized. DistributedDataParallel has
its final messages in the second, and tells of them (torchs_own.bucket_layout) in the third."""
PRACTICE = 64
"""Batches of a loader without a step, after which a newcomer takes the loader for one that does not train."""
TOLD_WITHIN_S = 3.0
"""How long a newcomer waits for the batches of the others' loaders."""
UNFIT = "unfit"
"""The layout of a newcomer that cannot join: no other worker's is like it."""
OVER = 1 << 40
"""Stands for the batches of an iteration that is over: the next call is in another one."""


class Stage(enum.Enum):
    """Where this worker is."""

    IDLE = enum.auto()
    """The process is no worker of a script of torch.distributed, or not yet."""
    BEGINNING = enum.auto()
    """A founder before its first steps."""
    WARMING = enum.auto()
    """A newcomer that is alone."""
    TRAINING = enum.auto()
    CATCHING_UP = enum.auto()
    """In a new generation, but not yet where the others wait."""
    RIGID = enum.auto()
    """The script cannot be resized."""


class TrainingLoop:
    """The training loop of this process (see the module)."""

    def __init__(self) -> None:
        self.loaders = Loaders()
        self.captured = Captured()
        self.base = 1
        self.rule = BatchRule.KEEP
        self._rates = ScaledRates(None, 1)
        self.group: ElasticGroup
        self._session: Session
        self._handover: Handover
        self._stage = Stage.IDLE
        self._rounds = 0
        """Calls for a batch after a step, so far; in a script without a DataLoader, ends of steps."""
        self._first_rounds = FIRST_ROUNDS
        self._stepped = False
        """Whether a step was taken since the last boundary."""
        self._phases = 0
        """With how many loaders the script has trained so far."""
        self._fetched: set[weakref.ref[Iteration]] = set()
        """The iterations that have given batches since the last step, to train with them."""
        self._unstepped = False
        """Whether a training batch was given for which no optimizer's step was called yet."""
        self._reductions = 0
        """Of gradients, by the end of the round before."""
        self._last: Iteration | None = None
        """The iteration that has given the last batch, unless it is over."""
        self._last_training: Iteration | None = None
        self._epochs = Epochs()
        """The iteration that has given the last training batch."""
        self._position = NOWHERE
        """The next call for a training batch: its iteration's place, and the batches before it. In a script
        without a DataLoader: 0, and the calls of the first optimizer's step."""
        self._first_optimizer: Any = None
        self._by_steps = False
        """Whether the script trains without a DataLoader, so that ends of steps are its boundaries."""
        self._by_rounds = False
        """Whether the beginnings of rounds of job.steps() are its boundaries then."""
        self._calls = 0
        self.variables = ScriptVariables(self.captured.covered, self.captured.declared.values)
        self.counting = CountingLoops()
        self._target = Target(NOWHERE, -1)
        """Where the others wait."""
        self._on_arrival: list[Callable[[bool], None]] = []
        self.counts_steps = False
        """Whether the script has counted the steps of an epoch in advance, as a framework's loop does."""
        self._placeholder: Callable[[], Any] | None = None
        self._parking: Parking | None = None
        self._finished = False

    @property
    def unit(self) -> Unit | None:
        """The unit of this worker; None in a job without units."""
        return self.group.unit if self.runs else None

    def mesh_backend(self) -> str:
        """The backend for a mesh's dimension of all workers of the job, if those are one unit; else ""."""
        unit = self.unit
        return "" if unit is None or self.group.size() != unit.size else str(dist.get_backend())

    def samples_alike(self, loader: Any) -> int:
        """The number of workers that have the same samples of this loader, which is being made."""
        unit, sampler = self.unit, sampler_of(loader)
        if unit is None or not isinstance(sampler, DistributedSampler):
            return 1
        try:
            return units.samples_alike(unit, self.group.rank(), self.group.size(), sampler)
        except UnevenSampler as error:
            self.keep_size(str(error))
            return 1

    def adapt_batch(self, loader: Any) -> None:
        """Give a newcomer's loader the batch of the others', if the script divides it by the workers."""
        known, own = self.loaders.of(loader), torchs_own.batch_of(loader)
        if self._stage is not Stage.WARMING or known is None or not own:
            return
        others, number = self._session.wait_for_batches(TOLD_WITHIN_S), known.history.number
        size, theirs = self.group.size(), others[number] if number < len(others) else 0
        if theirs and abs(own * size - theirs * self.base) < max(size, self.base):
            torchs_own.set_batch(loader, theirs)

    @property
    def is_resizable(self) -> bool:
        """Whether this worker is one of a job that may be resized, as far as is known."""
        return self._stage not in (Stage.IDLE, Stage.RIGID)

    @property
    def is_muted(self) -> bool:
        """Whether what this worker does now has no effect."""
        return self._stage in (Stage.WARMING, Stage.CATCHING_UP)

    @property
    def is_new(self) -> bool:
        """Whether this is a newcomer that has not got the others' state yet."""
        warming = self._stage is Stage.WARMING
        return warming or (self._stage is Stage.CATCHING_UP and self._handover.origin is Origin.NEW)

    def on_arrival(self, arrived: Callable[[bool], None]) -> None:
        """Call `arrived` in each generation, when this worker has the state and its place.

        Its argument says whether this worker's last steps had no effect.
        """
        self._on_arrival.append(arrived)

    @property
    def weight(self) -> float:
        """See declared.Runtime."""
        return self.group.weight if self.runs else 1.0

    @property
    def has_begun(self) -> bool:
        """See declared.Runtime."""
        return self._first_optimizer is not None

    @property
    def runs(self) -> bool:
        """Whether loaders and optimizers have to do with a job that may be resized."""
        return self._stage is not Stage.IDLE

    def begin(
        self, session: Session, group: ElasticGroup, *, base: int, rule: BatchRule, rates: RateRule | None
    ) -> None:
        """Begin, in init_process_group."""
        self._session, self.group, self.base, self.rule = session, group, base, rule
        self._rates = ScaledRates(rates, base)
        self._parking = parking.of_job(session)
        self._handover = Handover(session, group, self.captured, self.variables, self._rates)
        self.variables.whole = group.adds_in_order
        self._stage = Stage.WARMING if session.warming else Stage.BEGINNING
        self.captured.sharded = self.unit is not None
        session.on_cannot_enter = self._cannot_enter
        session.told_first = group.rank() == 0
        self.watch_newcomer()

    def watch_newcomer(self) -> None:
        """Watch the loops of a newcomer's script."""
        if self._stage is Stage.WARMING:
            self.counting.watch()

    def keep_size(self, why: str) -> None:
        """Never resize this job. `why` names what stands in the way, and where.

        A newcomer finds the same obstacle as the founders, or one that they could not see: for a single
        founder, a group of rank 0 is one of all workers. The newcomer waits to be told to leave.
        """
        if self._stage is Stage.WARMING:
            say(f"this worker cannot join: {why}")
            self._session.layout = UNFIT
            self._session.join()
            sys.exit(1)
        if self._stage is Stage.BEGINNING:
            self._stage = Stage.RIGID
            self._session.keeps_size(why)

    def count_steps(self, what: str, placeholder: Callable[[], Any] | None = None) -> None:
        """Note that the script counts its batches itself. `what`: the framework that does so.

        The global batch stays that of the base, and so does the number of steps. If there is a `placeholder`,
        a newcomer gets one for each batch that the others have had in the present epoch, and counts it.
        """
        if self.rule is not BatchRule.KEEP and self.group.rank() == 0:
            say(f"the global batch stays that of the base: {what} counts the steps of an epoch in advance")
        self.rule, self.counts_steps, self._placeholder = BatchRule.KEEP, True, placeholder

    def follows_rank(self) -> None:
        """Note that the script asks for its rank whenever it matters, as frameworks do.

        So if rank 0 is lost, the next founder becomes rank 0. Else, a newcomer is told rank 0 from its start.
        """
        if self._stage is Stage.BEGINNING:
            self._session.told_first = True

    def model_made(self, model: Any) -> None:
        """Note a model in DistributedDataParallel. One that is made later needs its first rounds, too."""
        self.captured.model(model)
        self._rounds = 0
        if getattr(model, "static_graph", False):  # has its final messages one pass later
            self._first_rounds = FIRST_ROUNDS + 1

    def hook_registered(self, state: Any) -> None:
        """Note that DistributedDataParallel gets a communication hook with this state, or None."""
        if why := obstacles.of_hook(state):
            self.keep_size(why)

    def rule_for(self, known: Loader) -> BatchRule:
        """The batch rule of an iteration that begins now.

        An evaluation has no global batch to keep. There, all workers have equally many samples in a batch,
        because scripts gather what they compute of them.
        """
        models = self.captured.models()
        trains = known.history.trains or any(getattr(each, "module", each).training for each in models)
        return self.rule if trains or not models else BatchRule.GROW

    def end(self) -> None:
        """End, in destroy_process_group: a script that makes the group again keeps the job's size."""
        if self._stage is Stage.IDLE:
            return
        self.finish()
        if self._stage is not Stage.WARMING:
            self._stage = Stage.RIGID
            self.group.guards = False

    def finish(self) -> None:
        """Tell the leader that the script has ended, unless it ends because its unit has lost a worker."""
        if self.unit is not None and not self._finished and not self.unit.lives():
            units.end_with_unit()
        self._finished = True
        self._session.finished()

    # --- called by the script ---------------------------------------------------------------------------

    def step(self, optimizer: Any, take: Callable[..., Any], closure: torchs_own.Closure | None) -> Any:
        """A step of an optimizer: taken, unless it is muted. A closure is called before, once."""
        if closure is not None and isinstance(optimizer, torch.optim.LBFGS):
            self.keep_size(obstacles.LBFGS)
        if self._stage is Stage.RIGID:
            self.group.wait_for_gpu()
        if self._stage in (Stage.IDLE, Stage.RIGID):
            return take()
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        if self._first_optimizer is None:
            self.variables.first_step()
        self._counts_call(optimizer)
        self._begins_step()
        self.group.wait_for_gpu()
        if self._must_recover():
            self._recover()
        if self._stage is not Stage.CATCHING_UP:
            result = take() if closure is None else take(lambda: result)
            self._has_stepped()
        elif self.is_new:
            self._stepped = True  # for its first rounds with a model that was made later
        declared.step_ends(counts=self._stage is not Stage.CATCHING_UP)
        if self._by_steps and not self._by_rounds and optimizer is self._first_optimizer:
            self._pass_end_of_step()
        return result

    def _has_stepped(self) -> None:
        self._stepped = True
        missing = self.group.missed_step()
        if self._last is not None:
            is_first = self._last.counts(missing)
            if is_first and (obstacle := self._last.obstacle()):
                self.keep_size(obstacle)
        if self._stage is not Stage.WARMING:
            self._session.committed(self._progress())

    def _progress(self) -> float:
        """The part of the declared epochs that is done; 0 while unknown, or while the job may keep its size.

        Nothing would take back what a job that keeps its size has told.
        """
        last = self._last_training
        if last is None or self._stage is not Stage.TRAINING:
            return 0.0
        phase = last.known.history.phase
        return progress.of_epochs(self._epochs.done(phase, last.epochs(), says_epoch=last.says_epoch))

    def _begins_step(self) -> None:
        """Note that the batches so far are trained with."""
        self._unstepped, last = False, self._last
        if self._several_loaders():
            self.keep_size(obstacles.SEVERAL_LOADERS)
        if last is not None and not last.known.history.trains:
            self._trains_with(last)
            self._last_training = last
            self._is_at(last.place, last.given)

    def _several_loaders(self) -> bool:
        """Whether the batches of this step come from several loaders, as in a loop over zip(a, b)."""
        fetched, self._fetched = self._fetched, set()
        if len(fetched) == 1 or self.group.adds_in_order:
            return False
        alive = [each for reference in fetched if (each := reference()) is not None]
        return sum(each.is_dealt() and not each.over for each in alive) > 1

    def _trains_with(self, iteration: Iteration) -> None:
        """Note that the script trains with the loader of this iteration."""
        history = iteration.known.history
        history.trains = True
        if history.phase < 0:
            history.phase = self._phases
            self._phases += 1

    def _counts_call(self, optimizer: Any) -> None:
        if self._first_optimizer is None:
            self._first_optimizer, self._by_steps = optimizer, self._last is None
        if self._by_rounds:
            return
        first = optimizer is self._first_optimizer
        self._calls += first
        if self._by_steps:
            self._position = 0, self._calls if first else self._calls + 1

    def _pass_end_of_step(self) -> None:
        """Pass a boundary of a script without a DataLoader."""
        self._ends_round(trains=True)
        while self._stage is not Stage.RIGID:
            if self._must_recover():
                self._recover()
            if self._stage is Stage.WARMING:
                if self._rounds < self._first_rounds:
                    return
                self._join()
            elif self._stage is Stage.CATCHING_UP:
                if self._handover.origin is not Origin.NEW and self._position < self._target.position:
                    return
                self._arrive(None)
            elif self._stepped and self._rounds >= self._first_rounds:
                self._pass_boundary(self._position)
            else:
                return

    def counts_rounds(self) -> None:
        """See declared.Runtime."""
        self._by_rounds = True

    def next_round(self) -> None:
        """See declared.Runtime. The next call for a batch is the boundary if the script has a DataLoader."""
        if self._stage in (Stage.IDLE, Stage.RIGID) or not self._by_steps:
            return
        self._position = 0, self._calls
        self._pass_end_of_step()
        self._calls += 1
        self._position = 0, self._calls

    def fetch(self, iteration: Iteration) -> Any:
        """The next batch of an iteration over a loader. Raises StopIteration."""
        self._ends_round(iteration.known.history.trains)
        if self.is_muted:
            self.counting.others_are_beyond = self._others_have_other_loader(iteration)
        while self._stage is not Stage.RIGID:
            together = iteration.is_dealt() or iteration.known.history.trains
            if not self._is_amid_step(iteration) and self._must_recover(together=together):
                self._recover()
            if self._stage is Stage.WARMING:
                if not self._is_warm(iteration) or self._is_behind(iteration):
                    return self._practice(iteration)
                self._join()
            elif self._stage is Stage.CATCHING_UP:
                if not self._has_caught_up(iteration):
                    return self._hurry(iteration)
                self._arrive(iteration)
            elif not (
                self._stepped and self._is_warm(iteration) and iteration.left() > 0
            ) or not self._pass_boundary((iteration.place, iteration.given), iteration):
                break
        return self._give(iteration)

    def _give(self, iteration: Iteration) -> Any:
        try:
            batch = iteration.next()
        except StopIteration:
            if iteration.known.history.trains:
                self._is_at(iteration.place, OVER)
            if self._last is iteration:
                self._last = None
            raise
        self._last = iteration
        if torch.is_grad_enabled():
            self._fetched.add(weakref.ref(iteration))
        if iteration.known.history.trains:
            self._unstepped = True
            self._last_training = iteration
            self._is_at(iteration.place, iteration.given)
        return batch

    def _is_at(self, place: int, given: int) -> None:
        self._position = place, given
        if self._stage is Stage.TRAINING and place + 1 != self._session.epoch:
            self._tell_place()

    def _tell_place(self) -> None:
        """Tell the leader where this worker is, and what newcomers must have there."""
        self._session.batches = tuple(self.loaders.batches())
        self._session.is_in_epoch(self._position[0] + 1, self._layout())

    def _layout(self) -> str:
        """What must be the same on all workers that are in the same iteration."""
        return f"{self._position[0]} {self.captured.layout()}"

    def _ends_round(self, trains: bool) -> None:
        """Count the first rounds. `trains`: whether the call comes from the training loop."""
        if trains and self._stepped and self._rounds < self._first_rounds:
            self._rounds += 1
            self._stepped = self._rounds == self._first_rounds
            # With static_graph, the first pass averages gradients after its end, like a script itself.
            averages = self.unit is None and bool(self.captured.models()) and self._rounds > 1
            if averages and self.group.reductions == self._reductions:
                self.keep_size(obstacles.NOT_AVERAGED)
            self._reductions = self.group.reductions
            if self._rounds == self._first_rounds and self._stage is Stage.TRAINING:
                self._tell_place()

    # --- boundaries -------------------------------------------------------------------------------------

    def _pass_boundary(self, position: tuple[int, int], iteration: Iteration | None = None) -> bool:
        """Pass a boundary. Returns whether this worker has come into another generation."""
        self._stepped = False
        if self._stage is Stage.BEGINNING and not self._enter_loop():
            return False
        checkpoint_task.run_all(self._session, functools.partial(self._write_checkpoint, position))
        word = self._session.at_boundary()
        if word is None:
            self._park_copy(position, iteration)
            return False
        self._position = position
        if word.parks:
            self._park(position, iteration)
        self._handover.give_up_ranks(word, iteration)
        if word.leave:
            self._session.leave()
        if word.aside:
            called, origin = self._session.step_aside(), Origin.NEW
        else:
            called = self._session.enter(word)
            origin = Origin.STAYS if called is word else Origin.BACK
        self._has_entered(origin, called)
        return True

    # --- an opportunistic job ---------------------------------------------------------------------------

    def _park_copy(self, position: tuple[int, int], iteration: Iteration | None) -> None:
        """Park a copy of the state in the base, if it is time for one."""
        if self._parking is not None and self._parking.due():
            self._parking.copy(self._head(position), functools.partial(self._handover.park, iteration))

    def _park(self, position: tuple[int, int], iteration: Iteration | None) -> None:
        """Park the state in the base, because training pauses here. All workers have the same state."""
        if self._parking is not None and self._session.rank == 0:
            self._parking.now(self._head(position), functools.partial(self._handover.park, iteration))

    def _head(self, position: tuple[int, int]) -> workers_pb2.ParkedHead:
        last = self._last_training
        return workers_pb2.ParkedHead(
            worker_id=self._session.worker_id,
            commits=self._session.commits,
            epoch=self._session.epoch,
            batches=self._session.batches,
            place=position[0],
            given=position[1],
            loader=-1 if last is None else last.known.history.number,
            random_numbers=self._handover.parks_random_numbers,
        )

    def _write_checkpoint(self, position: tuple[int, int], *where: Any) -> CheckpointInfo:
        if self.unit is not None:
            raise CheckpointError("the job has units: each worker has a part of the model only")
        place, number = position
        last = self._last_training
        reached = {"step": number} if last is None else {"epoch": last.epoch_of(place), "batch": number}
        return checkpoints.write_contents(lambda: checkpoint.contents(self.captured, reached), *where)

    def _enter_loop(self) -> bool:
        why = obstacles.of_first_steps(
            self.captured, self.group, self._last_training, by_steps=self._by_steps
        )
        if why:
            self.keep_size(why)
            return False
        if self._parking is not None:
            self._handover.found()
        self._tell_place()
        self._session.enter_loop()
        self._session.begins(self._session.commits)
        self.variables.training_begins()
        self._stage = Stage.TRAINING
        self.group.guards = True
        return True

    def _has_entered(self, origin: Origin, called: Called, *, still_new: bool = False) -> None:
        """Come into a generation. Without `sync`, workers have left at a boundary, and all others stay."""
        self._handover.begin(origin)
        self._stage = Stage.CATCHING_UP
        if not (called.sync or still_new):
            self._target = Target(self._position, -1)
            return
        self.group.muted = True
        last = self._last_training
        fetch = self._parking.fetch if called.resumes and self._parking is not None else None
        try:
            self._target = self._handover.meet(
                self._next_call(), -1 if last is None else last.known.history.number, fetch
            )
        except RuntimeError as error:
            self.group.note_failure(error)

    def _next_call(self) -> tuple[int, int]:
        """The next call for a training batch. Not all loops call for the end of an epoch, so it is none."""
        last = self._last_training
        if last is not None and self._position == (last.place, last.given) and last.is_over():
            return last.place, OVER
        return self._position

    # --- newcomers --------------------------------------------------------------------------------------

    def _is_warm(self, iteration: Iteration) -> bool:
        """Whether this is the training loader, and the first steps are taken."""
        return iteration.known.history.trains and self._rounds >= self._first_rounds

    def _is_behind(self, iteration: Iteration) -> bool:
        """Whether the others are in a later epoch: this worker goes through those before it alone."""
        return iteration.place + 1 < self._session.epoch_of_others

    def _others_have_other_loader(self, iteration: Iteration) -> bool:
        """Whether the others train with a later loader than this one, so that its epochs are over."""
        place = self._session.epoch_of_others - 1
        if self._stage is Stage.CATCHING_UP:
            place = max(place, self._target.position[0])
        return place // MOST_ITERATIONS > max(iteration.known.history.phase, 0)

    def _practice(self, iteration: Iteration) -> Any:
        """A batch for practice."""
        most = 1 if self._rounds >= self._first_rounds else PRACTICE
        behind = self._is_warm(iteration) and self._is_behind(iteration)
        if iteration.given >= most and (behind or not iteration.known.history.trains):
            raise StopIteration
        try:
            return self._give(iteration)
        except StopIteration:
            if not iteration.known.history.trains:
                raise
        self._last = iteration
        return iteration.again()

    def _join(self) -> None:
        self._session.layout = self._layout()
        self.group.guards = True
        self._has_entered(Origin.NEW, self._session.join(), still_new=True)

    # --- catching up ------------------------------------------------------------------------------------

    def _must_recover(self, *, together: bool = True) -> bool:
        """Whether the generation is broken. `together`: whether all workers of a unit ask here.

        They decide alike, because the others of its unit cannot go on without a worker that waits.
        """
        if self._stage not in (Stage.TRAINING, Stage.CATCHING_UP):
            return False
        failed = self.group.has_failed()
        if self.unit is None:
            return failed
        if not together or not units.any_has(self.unit, failed):
            return False
        if not failed:
            self.group.note_failure("another worker of this unit has lost a peer")
        return True

    def _cannot_enter(self) -> None:
        """Tell the unit that this worker could not enter a generation, and waits for the next one."""
        if self.unit is not None and self._stage in (Stage.TRAINING, Stage.CATCHING_UP, Stage.WARMING):
            units.any_has(self.unit, True)

    def _is_amid_step(self, iteration: Iteration) -> bool:
        """Whether the script accumulates the gradients of several batches, and has some of them.

        A worker that recovered here would take this step with fewer batches, and the epoch one step more.
        """
        return self._unstepped and iteration.known.history.trains and not self.is_new

    def _recover(self) -> None:
        """Wait for the generation that replaces the one that broke."""
        still_new = self.is_new
        self._session.hang_up()
        called = self._session.recover()
        self._has_entered(Origin.NEW if still_new else Origin.BACK, called, still_new=still_new)

    def _has_caught_up(self, iteration: Iteration) -> bool:
        history = iteration.known.history
        if self._handover.origin is not Origin.NEW:
            return history.trains and (iteration.place, iteration.given) >= self._target.position
        if history.number != self._target.loader:
            return False
        self._trains_with(iteration)
        place, given = self._target.position
        if self._rounds < self._first_rounds:
            return False
        if given == OVER:
            return iteration.place > place
        if iteration.place > place:
            sys.exit("flexo: this worker cannot join: its script is in a later epoch than the others")
        passed = self._placeholder is None or iteration.given >= given
        return iteration.place == place and passed

    def _hurry(self, iteration: Iteration) -> Any:
        """A batch of a worker that is not where the others are: newcomers see one batch of a loader."""
        if self._handover.origin is Origin.NEW:
            if (
                self._placeholder
                and iteration.known.history.trains
                and iteration.place == self._target.position[0]
            ):
                iteration.skip()
                return self._placeholder()
            if self._rounds < self._first_rounds and iteration.known.history.number == self._target.loader:
                return self._practice(iteration)
            if iteration.given >= 1:
                raise StopIteration
        return self._give(iteration)

    def _arrive(self, iteration: Iteration | None) -> None:
        """Be where the others are: take the state over, or give it."""
        lost = self._handover.origin is not Origin.STAYS
        try:
            self._handover.compare(self.captured.layout())
            start = self._handover.carry(iteration)
        except RuntimeError as error:
            self.group.note_failure(error)
            return
        self.group.take_place()
        self._rates.follow(self.group.size(), self.captured.optimizers(), left_out.made())
        self._position = self._target.position
        place, passed = self._position
        if iteration is None:
            self._calls = passed
        else:
            passed = passed if iteration.place == place else 0
            iteration.go_on_at(passed, start)
        commits = self._handover.settle(iteration)
        if lost:
            for optimizer in self.captured.optimizers():
                optimizer.zero_grad()  # of batches that are dealt out again
        for arrived in self._on_arrival:
            arrived(lost)
        self.counting.go_on(self.variables.taken, passed)
        self.variables.taken.clear()
        self._stage, self._stepped = Stage.TRAINING, False
        self.group.muted = False
        self._session.begins(commits)


@functools.cache
def current() -> TrainingLoop:
    """The training loop of this process."""
    return TrainingLoop()
