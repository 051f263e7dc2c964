"""An opportunistic job: its base has no workers, and it pauses and goes on with its satellites."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from test_membership_in_a_random_world import Play
from thorough import examples
from world import World

from horovod_elastic.leader.membership.roster import WorkerStatus
from horovod_elastic.phase import Phase


def waiting_world(*satellites: str, minimum: int = 2, slots: int = 1) -> World:
    """The base is there, and these satellites, whose workers start."""
    world = World({"b1": 0}, minimum=minimum)
    world.join("b1", 0)
    for agent in satellites:
        world.join(agent, slots)
    return world


def begin(world: World) -> World:
    """All workers are ready, and in the training loop as soon as they train."""
    for _ in range(4):
        for worker_id in list(world.processes):
            if worker_id in world.processes:
                world.ready(worker_id)
        world.flush()
        for worker_id in list(world.processes):
            if worker_id in world.processes:
                world.enter_loop(worker_id)
        world.commit()
    world.align()
    return world


def training_world(*satellites: str, minimum: int = 2) -> World:
    world = begin(waiting_world(*satellites, minimum=minimum))
    assert len(world.training()) == len(satellites)
    return world


def agents(world: World) -> list[str]:
    return [process.agent for process in world.training().values()]


def commits(world: World) -> set[int]:
    return {process.commits for process in world.training().values()}


def test_training_begins_with_the_first_workers_of_satellites() -> None:
    world = waiting_world("s1")
    begin(world)
    assert not world.training()
    world.join("s2", 1)
    begin(world)
    assert len(world.training()) == 2
    assert not any(process.newcomer for process in world.processes.values())


def test_as_many_found_it_as_its_minimum_and_others_join() -> None:
    world = waiting_world("s1", "s2", slots=2, minimum=3)
    newcomers = [process.newcomer for process in world.processes.values()]
    assert newcomers == [False, False, False, True]
    assert {outlook.size for outlook in list(world.outlooks.values())[:3]} == {3}
    assert [outlook.rank for outlook in list(world.outlooks.values())[:3]] == [0, 1, 2]
    assert not any(world.members.worker(each).told_first for each in world.processes)  # type: ignore[union-attr]
    begin(world)
    assert len(world.training()) == 4
    assert len(world.forms[0].places) == 3


def test_newcomers_take_the_places_of_founders_that_went_before_it_began() -> None:
    world = waiting_world("s1", "s2", "s3")
    for worker_id in list(world.processes):
        if world.processes[worker_id].agent != "s2":
            world.ready(worker_id)
    world.release("s1")
    world.quieten()
    assert agents(world) == ["s2", "s3"] or agents(world) == ["s3", "s2"]
    assert len(world.forms[0].places) == 2


def test_a_founder_that_is_killed_before_it_began_is_started_again() -> None:
    world = waiting_world("s1", "s2")
    world.exit(world.of("s1")[0], -9)
    begin(world)
    assert len(world.training()) == 2
    assert world.end is None


def test_a_founder_that_fails_before_it_began_ends_the_job() -> None:
    world = waiting_world("s1", "s2")
    world.exit(world.of("s1")[0], 3)
    assert world.end is not None
    assert world.end.exit_code == 3


def test_below_its_minimum_it_parks_and_waits_and_goes_on() -> None:
    world = training_world("s1", "s2")
    before = max(commits(world))
    world.release("s1")
    world.commit()
    assert world.members.paused
    assert not world.training()
    assert world.stored is not None
    assert world.stored >= before
    assert "s2" in world.agents, "flexod decides what becomes of it"
    stored = world.stored
    world.join("s3", 1)
    begin(world)
    assert sorted(agents(world)) == ["s2", "s3"]
    assert min(commits(world)) > stored
    assert world.went_back == 0
    world.finish()
    world.quieten()
    assert world.end is not None
    assert world.end.exit_code == 0


def test_a_job_of_one_size_pauses_as_well_and_the_last_worker_parks() -> None:
    world = training_world("s1", minimum=1)
    world.release("s1")
    world.commit()
    assert world.members.paused
    assert world.agents == {"b1": 0}


def test_newcomers_that_are_ready_keep_it_going() -> None:
    world = training_world("s1", "s2")
    world.join("s3", 1)
    for worker_id in world.of("s3"):
        world.ready(worker_id)
    world.release("s1")
    world.commit()
    world.commit()
    assert not world.members.paused
    assert sorted(agents(world)) == ["s2", "s3"]


def test_after_a_loss_the_rest_goes_back_to_its_last_commit_and_parks() -> None:
    world = training_world("s1", "s2", "s3")
    before = max(commits(world))
    world.lose("s1")
    world.lose("s2")
    world.commit()
    world.commit()
    assert world.members.paused
    assert world.stored is not None
    assert world.stored >= before
    assert world.went_back == 0


def test_after_the_loss_of_all_it_goes_back_to_the_parked_state() -> None:
    world = training_world("s1", "s2")
    world.park(next(iter(world.training())))
    stored = world.stored
    world.train(3)
    world.join("s3", 1)  # it may have gone through epochs behind which training goes back
    early = world.of("s3")[0]
    world.lose("s1")
    world.lose("s2")
    assert world.members.paused
    assert early not in world.processes
    assert (world.stored, world.went_back) == (stored, 1)
    world.join("s4", 1)
    begin(world)
    assert sorted(agents(world)) == ["s3", "s4"]
    assert world.forms[-1].go is not None
    assert world.forms[-1].commits == stored


def test_workers_that_are_killed_together_go_back_to_the_parked_state() -> None:
    world = training_world("s1", "s2")
    world.park(next(iter(world.training())))
    for worker_id in list(world.processes):
        world.exit(worker_id, -9)
    assert world.members.paused
    begin(world)
    assert sorted(agents(world)) == ["s1", "s2"]
    assert world.end is None


def test_without_a_parked_state_it_begins_anew() -> None:
    world = training_world("s1", "s2")
    world.lose("s1")
    world.lose("s2")
    assert world.end is None
    world.join("s3", 1)
    world.join("s4", 1)
    assert not any(process.newcomer for process in world.processes.values())
    begin(world)
    assert sorted(agents(world)) == ["s3", "s4"]


def test_founders_that_are_lost_before_their_loop_take_the_others_with_them() -> None:
    world = waiting_world("s1", "s2")
    for worker_id in list(world.processes):
        world.ready(worker_id)
    world.flush()
    assert len(world.training()) == 2
    world.lose("s1")
    assert world.end is None
    assert world.went_back == 1
    world.join("s3", 1)
    begin(world)
    assert sorted(agents(world)) == ["s2", "s3"]


def test_bystanders_that_fail_before_the_loss_is_noticed_do_not_end_the_job() -> None:
    world = waiting_world("s1", "s2")
    for worker_id in list(world.processes):
        world.ready(worker_id)
    world.flush()
    world._die(world.of("s1")[0])  # with its agent, of which the leader has not heard yet
    world.exit(world.of("s2")[0], 1)
    assert world.end is None
    world.lose("s1")
    assert world.end is None
    world.join("s3", 1)
    begin(world)
    assert sorted(agents(world)) == ["s2", "s3"]


def test_a_script_that_fails_before_its_loop_ends_the_job() -> None:
    world = waiting_world("s1", "s2")
    for worker_id in list(world.processes):
        world.ready(worker_id)
    world.flush()
    world.exit(world.of("s2")[0], 1)
    world.quieten()
    assert world.end is not None
    assert world.end.exit_code == 1


def test_a_script_that_fails_everywhere_ends_the_job() -> None:
    world = training_world("s1", "s2")
    world.park(next(iter(world.training())))
    for worker_id in list(world.training()):
        world.exit(worker_id, 3)
    assert world.end is not None
    assert world.end.exit_code == 3


def test_a_script_that_cannot_be_resized_ends_the_job_when_a_worker_has_to_leave() -> None:
    world = waiting_world("s1", "s2")
    for worker_id in list(world.processes):
        world.ready(worker_id)
    world.flush()
    for worker_id in list(world.training()):
        part = world.processes[worker_id].part
        status = WorkerStatus(Phase.TRAINING, part.generation, part.rank, part.size, fixed_why="it says so")
        world.obey(world.members.worker_stands(worker_id, status, world.now))
    assert world.end is None
    world.release("s1")
    assert world.end is not None
    assert world.end.exit_code == 1
    assert "it says so" in world.end.why


def test_a_state_of_a_worker_that_was_given_up_is_not_kept() -> None:
    world = training_world("s1", "s2", "s3")
    lost = world.of("s1")[0]
    assert world.members.may_park(lost)
    world.lose("s1")
    assert not world.members.may_park(lost)
    assert not world.members.may_park("w99")


def test_a_limit_never_makes_it_pause() -> None:
    world = training_world("s1", "s2", "s3")
    world.obey(world.members.limit(1, world.now))
    world.commit()
    assert len(world.training()) == 2


def test_generations_that_break_without_a_loss_do_not_follow_each_other_for_ever() -> None:
    world = training_world("s1", "s2")
    world.release("s1")
    world.commit()
    world.join("s3", 1)
    for _ in range(40):
        for worker_id in list(world.processes):
            world.ready(worker_id)
        world.flush()
        for worker_id in list(world.training()):
            world.fail(worker_id)
        world.flush()
        world.live(1.0)
    assert world.end is not None
    assert "parked state" in world.end.why


def test_one_worker_of_those_that_go_on_is_told_rank_0() -> None:
    world = training_world("s1", "s2")
    for process in world.processes.values():
        process.layout, process.told_first = "0 same", process.agent == "s1"
    world.live(1.0)
    world.release("s1")
    world.commit()
    world.join("s3", 1)
    told = [each for each in world.processes if world.members.worker(each).told_first]  # type: ignore[union-attr]
    assert len(told) == 1
    outlooks = [world.outlooks[each] for each in (*told, *(world.processes.keys() - told))]
    assert [(each.rank, each.size) for each in outlooks] == [(0, 2), (1, 2)]


def test_a_new_leader_finds_a_paused_job() -> None:
    world = training_world("s1", "s2")
    world.release("s1")
    world.commit()
    stored = world.stored
    world.new_leader()
    assert world.members.paused
    world.join("s3", 1)
    begin(world)
    assert sorted(agents(world)) == ["s2", "s3"]
    assert world.forms[-1].commits == stored


def test_a_new_leader_finds_a_paused_job_without_any_satellite() -> None:
    world = training_world("s1", minimum=1)
    world.release("s1")
    world.commit()
    world.new_leader()
    assert world.members.paused
    assert world.end is None


def test_a_new_leader_takes_the_pause_over_where_it_was() -> None:
    world = training_world("s1", "s2")
    world.release("s1")
    world.flush()  # all have their word, and nobody has carried it out
    world.new_leader(passed_on=True)
    world.quieten()
    assert world.members.paused
    assert world.stored is not None
    assert world.end is None
    assert set(world.agents) == {"b1", "s2"}


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("join", "join", "ready", "ready", "commit", "commit", "settle", "settle", "settle"),
                *("deliver", "deliver", "step", "step", "release", "release", "lose", "lose", "kill"),
                *("fail", "finish", "wait", "limit", "new_leader"),
            ]
        ),
        st.integers(0, 7),
        st.integers(1, 3),
    ),
    min_size=5,
    max_size=40,
)


class PausingPlay(Play):
    """Rank 0 parks from time to time; the base's agent and its leader may be killed."""

    def settle(self, which: int, number: int) -> None:
        """What is under way comes to its end; one more satellite comes if the job pauses."""
        if self._world.members.paused and which > 2:
            self._serial += 1
            self._world.join(f"s{self._serial}", number)
        for _ in range(number):
            begin(self._world)

    def commit(self, which: int, number: int) -> None:
        super().commit(which, number)
        training = list(self._world.training())
        if training and number == 3 and self._world.processes[training[0]].part.in_loop:
            self._world.park(training[0])

    def new_leader(self, which: int, number: int) -> None:
        self._world.new_leader(satellites_first=number == 2, passed_on=which % 2 == 1)


@settings(max_examples=examples(300))
@given(events=EVENTS, minimum=st.integers(1, 3), more=st.integers(-1, 1))
def test_whatever_happens_it_goes_on_once_there_are_enough(
    events: list[tuple[str, int, int]], minimum: int, more: int
) -> None:
    world = begin(waiting_world(*["s96", "s97", "s98", "s99"][: minimum + more], minimum=minimum))
    PausingPlay(world).run(events)
    world.obey(world.members.limit(None, world.now))
    world.quieten()
    if world.end is None and not world.training():
        world.join("late", minimum)
        world.quieten()
    if world.end is None:
        assert len(world.training()) >= minimum
        waiting = {w: p.moment for w, p in world.processes.items() if p.moment != "training"}
        assert not waiting, "once the system is quiet everybody trains"
        world.finish()
        world.quieten()
    assert world.end is not None, "the job ends when all have finished"
    assert not world.processes
