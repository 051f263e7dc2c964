"""A new leader of a job that trains already: what it hears, what was on its way when the old one was lost."""

from __future__ import annotations

from world import World, founded_world, training_world

from horovod_elastic.leader.membership.commands import Abandon, Broken, Command, End, Go, Kill, Prepare, Start
from horovod_elastic.leader.membership.membership import Membership
from horovod_elastic.leader.membership.roster import Running, WorkerStatus
from horovod_elastic.leader.membership.takeover import TAKEOVER_BOUND_S
from horovod_elastic.phase import Phase


def until_the_word(world: World) -> None:
    """Messages go to and fro until the leader has given the word, which nobody has heard yet."""
    generation = world.members.generation
    while world.members.generation == generation:
        for worker_id in list(world.processes):
            world.deliver(worker_id)
            if world.members.generation != generation:
                return


def hears_everything(world: World, worker_id: str) -> None:
    while world.deliver(worker_id):
        pass


def bring_a_newcomer(world: World) -> str:
    """A satellite's worker that is ready; the change that takes it in has begun."""
    world.join("s9", 1)
    (newcomer,) = world.of("s9")
    part = world.processes[newcomer].part
    part.in_loop = True
    part.wait_ready()
    world.stand(newcomer)
    return newcomer


def live_on(world: World, seconds: int) -> None:
    for _ in range(seconds):
        for worker_id in list(world.processes):
            world.step(worker_id)
        world.live(1.0)


def test_a_new_leader_goes_on_with_the_workers_that_there_are() -> None:
    world = training_world({"b1": 1}, "s1", slots=2)
    generations = len(world.forms)
    world.new_leader()
    world.flush()
    assert len(world.forms) == generations, "training goes on as it was"
    assert world.members.size == 3
    world.release("s1")
    world.commit()
    assert sorted(world.training()) == ["w1"]


def test_a_new_leader_lets_nobody_go_before_it_knows_where_everybody_stands() -> None:
    world = training_world({"b1": 1}, "s1", slots=2)
    world.release("s1")
    world.new_leader(satellites_first=True)  # told again at once; world.py looks at how they go
    assert len(world.training()) == 3
    world.commit()
    assert sorted(world.training()) == ["w1"]
    assert world.dismissed == {"s1"}


def test_a_leader_that_dies_with_its_workers_is_replaced_and_the_rest_goes_back_to_its_last_commit() -> None:
    world = training_world({"b1": 1}, "s1", slots=2)
    world.new_leader(dies_with_it="b1")
    world.join("b1", 1)
    world.tick(TAKEOVER_BOUND_S + 1)
    world.commit()
    assert sorted(world.training()) == ["w2", "w3"]
    world.quieten()
    assert len(world.training()) == 3
    assert world.end is None


def test_one_that_the_leader_before_had_called_aside_comes_back_under_the_new_one() -> None:
    world = training_world({"b1": 2})
    world.obey(world.members.limit(1, world.now))
    world.new_leader()
    world.commit()
    world.quieten()
    assert len(world.training()) == 2
    assert world.members.size == 2


def test_a_new_leader_waits_for_the_agents_only_so_long() -> None:
    members = Membership(1, ["b1"], taking_over=0.0)
    status = WorkerStatus(Phase.TRAINING, 3, 0, 2, 40, 7, in_loop=True, called=3)
    assert members.agent_joined("b1", 1, True, 1.0, [Running("w1", 0, False, status)]) == []
    assert members.tick(TAKEOVER_BOUND_S - 1) == []
    commands = members.tick(TAKEOVER_BOUND_S + 1)
    assert [each.worker_ids for each in commands if isinstance(each, Broken)] == [("w1",)]


def test_workers_that_are_all_back_at_their_commit_when_it_takes_over_go_on() -> None:
    """A collective failed, though nobody died, while the leader changed."""
    world = training_world({"b1": 1, "b2": 1})
    world.fail("w1")
    world.fail("w2")
    world.new_leader()
    live_on(world, 5)
    assert sorted(world.training()) == ["w1", "w2"]
    assert world.end is None


def test_a_change_that_all_have_been_called_to_is_waited_for() -> None:
    world = training_world({"b1": 1}, "s1", "s2")
    world.release("s1")
    until_the_word(world)
    for worker_id in list(world.processes):
        hears_everything(world, worker_id)
    commits = max(process.commits for process in world.processes.values())
    world.new_leader()
    live_on(world, 10)
    assert sorted(world.training()) == ["w1", "w3"]
    assert world.steps[-1] > commits
    assert world.steps == sorted(world.steps), "nothing is done again"


def test_who_missed_the_word_that_others_heard_is_back_with_them_soon() -> None:
    world = training_world({"b1": 1, "b2": 1})
    newcomer = bring_a_newcomer(world)
    until_the_word(world)
    hears_everything(world, newcomer)
    hears_everything(world, "w1")
    world.new_leader()
    live_on(world, 20)
    assert sorted(world.training()) == ["w1", "w2", newcomer]


def test_the_one_that_holds_the_model_is_found_though_only_newcomers_heard_the_word() -> None:
    world = training_world({"b1": 1, "b2": 1})
    newcomer = bring_a_newcomer(world)
    until_the_word(world)
    hears_everything(world, newcomer)
    commits = world.processes["w2"].commits
    world.new_leader(dies_with_it="b1")
    world.join("b1", 1)
    live_on(world, 40)
    assert world.end is None
    assert world.processes["w2"].commits > commits


def test_a_leaver_that_missed_its_word_leaves_soon() -> None:
    world = training_world({"b1": 2}, "s1")
    (leaver,) = world.of("s1")
    world.release("s1")
    until_the_word(world)
    for _ in range(6):
        for worker_id in ("w1", "w2"):
            hears_everything(world, worker_id)
        for worker_id in list(world.processes):
            world.step(worker_id)
    assert world.processes[leaver].part.holding
    world.new_leader(satellites_first=True)
    live_on(world, 20)
    assert leaver not in world.processes
    assert world.dismissed == {"s1"}
    assert sorted(world.training()) == ["w1", "w2"]


def test_a_word_that_agents_were_just_passing_on_counts() -> None:
    world = training_world({"b1": 1}, "s1", "s2")
    world.release("s1")
    until_the_word(world)
    world.new_leader(passed_on=True)
    live_on(world, 10)
    assert sorted(world.training()) == ["w1", "w3"]
    assert not world.members.finishing
    newcomer = bring_a_newcomer(world)
    live_on(world, 10)
    assert newcomer in world.training()


def test_of_a_rigid_script_that_is_about_to_end_nothing_is_started_or_killed() -> None:
    world = founded_world({"b1": 1, "b2": 1})
    world.exit("w2", 0)
    world.new_leader()
    live_on(world, 200)  # rank 0 still saves
    assert list(world.processes) == ["w1"]
    world.exit("w1", 0)
    assert world.end == End(0, "the script ended")


def test_a_worker_that_was_lost_before_the_loop_is_replaced_once_the_others_enter_it() -> None:
    world = founded_world({"b1": 1, "b2": 1})
    world.new_leader(dies_with_it="b1")
    world.join("b1", 1)
    world.tick(TAKEOVER_BOUND_S + 1)
    world.enter_loop("w2")
    world.quieten()
    assert len(world.training()) == 2


def test_an_agent_lost_before_anything_was_trained_comes_again() -> None:
    world = World({"b1": 1, "b2": 1})
    world.join("b1", 1)
    world.join("b2", 1)
    world.lose("b2")
    assert world.end is None
    world.dismissed.clear()
    world.join("b2", 1)
    world.quieten()
    assert len(world.training()) == 2


def test_a_leaver_whose_end_is_told_again_ends_nothing_but_itself() -> None:
    """The leader died with the base's workers, a moment after a satellite had been let go."""
    members = Membership(2, ["b1"], taking_over=0.0)
    stays = WorkerStatus(Phase.TRAINING, generation=2, rank=2, size=3, commits=9, in_loop=True, called=2)
    left = WorkerStatus(Phase.TRAINING, generation=1, rank=3, size=4, commits=9, in_loop=True, called=2)
    members.agent_joined("s2", 1, False, 1.0, [Running("w4", 0, True, stays)])
    members.agent_joined("s1", 1, False, 1.0, [Running("w3", 0, True, left)])
    assert members.worker_exited("w3", 0, 1.0) == []
    commands = members.tick(TAKEOVER_BOUND_S + 1)
    assert not members.finishing
    assert [each.worker_ids for each in commands if isinstance(each, Broken)] == [("w4",)]
    assert not any(isinstance(each, Start) and each.agent == "s1" for each in commands)


def stands(
    phase: Phase, generation: int = 3, rank: int = 0, size: int = 1, in_loop: bool = True
) -> WorkerStatus:
    return WorkerStatus(phase, generation, rank, size, commits=9, in_loop=in_loop, called=generation)


def kinds(commands: list[Command]) -> list[type[Command]]:
    return [type(command) for command in commands]


def test_newcomers_that_were_on_their_way_join_under_the_new_leader() -> None:
    world = training_world({"b1": 1})
    world.join("s1", 1)
    world.join("s2", 1)
    world.processes["w2"].part.in_loop = True
    world.processes["w2"].part.wait_ready()
    world.new_leader(satellites_first=True)
    world.quieten()
    assert sorted(world.training()) == ["w1", "w2", "w3"]
    assert "w4" not in world.processes, "nobody is started again"


def test_of_a_job_that_has_finished_a_new_leader_waits_for_the_end() -> None:
    world = training_world({"b1": 2})
    world.finish()
    world.new_leader()
    world.exit("w1", 0)
    assert world.end is None
    world.exit("w2", 0)
    assert world.end == End(0, "the script ended")


def test_when_the_only_agent_is_lost_before_all_are_known_the_job_is_over() -> None:
    members = Membership(1, ["b1"], taking_over=0.0)
    missing = stands(Phase.TRAINING, size=2)
    assert members.agent_joined("b1", 1, True, 1.0, [Running("w1", 0, False, missing)]) == []
    assert members.agent_lost("b1", "its node is gone", 2.0) == []
    commands = members.tick(TAKEOVER_BOUND_S + 1)
    assert [each.exit_code for each in commands if isinstance(each, End)] == [1]
    assert members.worker_exited("w1", -9, TAKEOVER_BOUND_S + 2) == [], "its end is told late"


def test_one_that_has_finished_is_not_called_though_its_agent_knew_only_that_a_collective_failed() -> None:
    members = Membership(1, ["b1"], taking_over=0.0)
    arrived = [Running("w1", 0, False, stands(Phase.ARRIVED))]
    assert Prepare in kinds(members.agent_joined("b1", 1, True, 1.0, arrived))
    commands = members.worker_stands("w1", stands(Phase.FINISHED), 2.0)
    assert kinds(commands) == [Abandon]
    assert members.finishing
    assert [e.exit_code for e in members.worker_exited("w1", 0, 3.0) if isinstance(e, End)] == [0]


def test_two_that_have_finished_end_the_job_though_one_was_called_once_more() -> None:
    """Its agent knew only that a collective had failed, and its communicator stood before it had finished."""
    members = Membership(2, ["b1"], taking_over=0.0)
    arrived = Running("w1", 0, False, stands(Phase.ARRIVED, rank=0, size=2))
    finished = Running("w2", 1, False, stands(Phase.FINISHED, rank=1, size=2))
    commands = members.agent_joined("b1", 2, True, 1.0, [arrived, finished])
    (prepare,) = [each for each in commands if isinstance(each, Prepare)]
    assert [place.worker_id for place in prepare.places] == ["w1"]
    assert members.worker_stands("w1", stands(Phase.FINISHED, rank=0, size=2), 2.0) == []
    assert Go in kinds(members.worker_prepared("w1", prepare.generation, "", 3.0))
    members.worker_exited("w1", 0, 4.0)
    assert [e.exit_code for e in members.worker_exited("w2", 0, 5.0) if isinstance(e, End)] == [0]


def test_a_rigid_script_of_which_one_has_finished_and_one_is_missing_is_left_alone() -> None:
    members = Membership(2, ["b1", "b2"], taking_over=0.0)
    finished = stands(Phase.FINISHED, size=2, in_loop=False)
    members.agent_joined("b1", 1, True, 1.0, [Running("w1", 0, False, finished)])
    commands = members.tick(TAKEOVER_BOUND_S + 1)
    assert not {Kill, Start, Broken, Prepare} & set(kinds(commands))
    ended = members.worker_exited("w1", 0, TAKEOVER_BOUND_S + 2)
    assert [each.exit_code for each in ended if isinstance(each, End)] == [0]
