"""Commands, slow workers and batches, with a leader that writes down what it is told to do."""

from __future__ import annotations

import pytest
from says import says

from flexo_protos.v1 import jobs_pb2, tasks_pb2, workers_pb2
from horovod_elastic.leader.oversight import Home, Oversight
from horovod_elastic.leader.pending_commands import Training
from horovod_elastic.leader.profiling import OPTED_OUT


class Leader:
    """The office: four workers, two of them in a satellite on n2."""

    def __init__(self) -> None:
        self.now = Training(1, ("a", "b", "c", "d"))
        self.homes = {
            "a": Home("n1-7", "n1", True, 2, (0,)),
            "b": Home("n1-7", "n1", True, 2, (1,)),
            "c": Home("n2-8", "n2", False, 1, (3,)),
            "d": Home("n3-9", "n3", False, 1, ()),
        }
        self.limits: list[int | None] = []
        self.told: list[tuple[str, workers_pb2.ToWorker]] = []
        self.flexod: list[jobs_pb2.FromLeader] = []
        self.given_back: list[str] = []
        self.renewed = 0

    def training(self) -> Training:
        return self.now

    def home_of(self, worker_id: str) -> Home | None:
        return self.homes.get(worker_id)

    def limit_workers(self, workers: int | None) -> None:
        self.limits.append(workers)

    def renew(self) -> None:
        self.renewed += 1

    def tell_worker(self, worker_id: str, message: workers_pb2.ToWorker) -> None:
        self.told.append((worker_id, message))

    def tell_flexod(self, message: jobs_pb2.FromLeader) -> None:
        self.flexod.append(message)

    def give_back_slow(self, agent: str, why: str) -> None:
        self.given_back.append(agent)

    def slow_gpus(self) -> list[jobs_pb2.SlowGpu]:
        return [message.slow_gpu for message in self.flexod if message.HasField("slow_gpu")]


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
def oversight(leader: Leader) -> Oversight:
    return Oversight(leader, profiling_allowed=True)


def train(oversight: Oversight, leader: Leader, slow: str, batches: int = 20) -> None:
    for boundary in range(1, batches + 1):
        for worker in leader.now.workers:
            own = 0.3 if worker == slow else 0.1
            steps = workers_pb2.StepTimes(own_s=[own], wall_s=[0.31])
            status = workers_pb2.WorkerStatus(
                generation=leader.now.generation, boundary=boundary, steps=steps
            )
            oversight.stands(worker, status, float(boundary))


def test_a_slow_worker_of_a_satellite_is_told_of_and_its_satellite_goes(
    leader: Leader, oversight: Oversight, capsys: pytest.CaptureFixture[str]
) -> None:
    train(oversight, leader, slow="c")
    (slow,) = leader.slow_gpus()
    assert (slow.node, list(slow.gpus), slow.ratio) == ("n2", [3], pytest.approx(3.0))
    assert leader.given_back == ["n2-8"]
    assert says(capsys.readouterr().err, "worker c", "3.0 times", "satellite")


def test_a_slow_worker_of_the_base_is_told_of_and_stays(leader: Leader, oversight: Oversight) -> None:
    train(oversight, leader, slow="a")
    assert [slow.node for slow in leader.slow_gpus()] == ["n1"]
    assert leader.given_back == []


def test_a_satellite_whose_other_workers_are_worth_more_stays(leader: Leader, oversight: Oversight) -> None:
    leader.homes["c"] = Home("n2-8", "n2", False, 3, (3,))
    train(oversight, leader, slow="c")
    assert len(leader.slow_gpus()) == 1
    assert leader.given_back == []


def test_a_slow_worker_that_has_gone_meanwhile_is_nobody_s_business(
    leader: Leader, oversight: Oversight
) -> None:
    del leader.homes["c"]
    train(oversight, leader, slow="c")
    assert leader.flexod == []


def test_while_sizes_are_profiled_nobody_is_sent_away(leader: Leader, oversight: Oversight) -> None:
    workers = jobs_pb2.WorkerRange(min=1, max=4)
    command = jobs_pb2.Command(id=5, profile=jobs_pb2.ProfileCommand(workers=workers, batches=1000))
    oversight.commanded(command, 0.0)
    assert oversight.pending_command == "profile of 1-4 workers"
    train(oversight, leader, slow="c")
    assert leader.given_back == []
    assert leader.limits == [4]


def test_a_profile_asks_for_sizes_and_ends_with_all(leader: Leader, oversight: Oversight) -> None:
    workers = jobs_pb2.WorkerRange(min=1, max=2)
    command = jobs_pb2.Command(id=5, profile=jobs_pb2.ProfileCommand(workers=workers, batches=3))
    oversight.commanded(command, 0.0)
    for generation, size in ((2, 2), (3, 1)):
        leader.now = Training(generation, ("a", "b", "c", "d")[:size])
        oversight.tick(1.0)
        train(oversight, leader, slow="")
    assert leader.limits == [2, 1, None]
    done = leader.flexod[-1].command_done
    assert [(point.workers, point.batches) for point in done.points] == [(1, 3), (2, 3)]
    assert oversight.pending_command == ""


def test_a_checkpoint_goes_to_rank_0_and_its_answer_to_flexod(leader: Leader, oversight: Oversight) -> None:
    oversight.commanded(jobs_pb2.Command(id=6, checkpoint=jobs_pb2.CheckpointCommand(path="/a/b")), 0.0)
    ((worker, message),) = leader.told
    assert (worker, message.task.write_checkpoint.path) == ("a", "/a/b")
    oversight.task_done("a", tasks_pb2.TaskDone(id=6, text="written"))
    assert leader.flexod[-1].command_done.text == "written"
    oversight.commanded(jobs_pb2.Command(id=7, checkpoint=jobs_pb2.CheckpointCommand(path="/a/b")), 0.0)
    oversight.worker_gone("a")
    assert leader.flexod[-1].command_done.outcome == jobs_pb2.CommandDone.OUTCOME_FAILED


def test_everybody_hears_of_the_batch_before_the_generation_that_it_is_for(
    leader: Leader, oversight: Oversight
) -> None:
    oversight.goes(2, ["a", "b"])
    assert leader.told == []
    oversight.batch_wanted(96)
    oversight.goes(3, ["a", "b"])
    batches = [(worker, message.task.set_batch) for worker, message in leader.told]
    assert [(worker, each.aggregate, each.generation) for worker, each in batches] == [
        ("a", 96, 3),
        ("b", 96, 3),
    ]


def speeds(**of: float) -> list[jobs_pb2.NodeSpeed]:
    return [jobs_pb2.NodeSpeed(node=node, speed=speed) for node, speed in of.items()]


def heard(leader: Leader) -> list[tuple[str, float]]:
    told, leader.told = leader.told, []
    return [(worker, message.task.set_speed.speed) for worker, message in told]


def test_everybody_hears_how_fast_its_gpu_is_before_its_first_generation_and_when_that_changes(
    leader: Leader, oversight: Oversight
) -> None:
    oversight.speeds_are(speeds(n1=3.0, n2=1.0, n3=1.0))
    oversight.goes(2, ["a", "b", "c"])
    assert heard(leader) == [("a", 3.0), ("b", 3.0), ("c", 1.0)]
    oversight.goes(3, ["a", "b", "c", "d"])
    assert heard(leader) == [("d", 1.0)]
    oversight.speeds_are(speeds(n1=3.0, n2=2.0, n3=1.0))
    for worker in ("a", "c"):
        oversight.stands(worker, workers_pb2.WorkerStatus(), 0.0)
    assert heard(leader) == [("c", 2.0)]
    oversight.speeds_are([])
    oversight.stands("a", workers_pb2.WorkerStatus(), 0.0)
    assert heard(leader) == [("a", 0.0)]


def test_a_worker_of_a_job_that_flexod_says_no_speeds_of_hears_of_none(
    leader: Leader, oversight: Oversight
) -> None:
    oversight.speeds_are([])
    oversight.goes(2, ["a", "b"])
    assert heard(leader) == []


@pytest.mark.parametrize("wrong", [0.0, -1.0, 1e-4, 1001.0, float("inf"), float("nan")])
def test_a_speed_that_cannot_be_makes_all_alike_and_is_said_once(
    leader: Leader, oversight: Oversight, capsys: pytest.CaptureFixture[str], wrong: float
) -> None:
    for _ in range(2):
        oversight.speeds_are(speeds(n1=3.0, n2=wrong, n3=1.0))
    oversight.goes(2, ["a", "b", "c"])
    assert heard(leader) == []
    said = capsys.readouterr().err
    assert said.count("speed of n2") == 1
    assert says(said, "0.001", 1000)


def test_only_workers_on_gpus_that_are_as_fast_hold_each_other_up(
    leader: Leader, oversight: Oversight
) -> None:
    oversight.speeds_are(speeds(n1=3.0, n2=1.0, n3=1.0))
    train(oversight, leader, slow="c")
    assert [slow.node for slow in leader.slow_gpus()] == ["n2"]
    leader.flexod.clear()
    oversight.speeds_are(speeds(n1=3.0, n2=1.0, n3=2.0))
    train(oversight, leader, slow="c")
    assert leader.slow_gpus() == []


def test_a_user_s_opting_out_is_why_the_job_is_not_scalable(leader: Leader, oversight: Oversight) -> None:
    assert oversight.unscalable_why == ""
    assert Oversight(leader, profiling_allowed=False).unscalable_why == OPTED_OUT


def test_trials_that_flexod_asks_for_late_get_a_generation_of_their_own(leader: Leader) -> None:
    oversight = Oversight(leader, profiling_allowed=True, batch="32-128")
    oversight.stands("a", workers_pb2.WorkerStatus(generation=1), 1.0)
    oversight.tick(1.0)
    assert leader.renewed == 0
    oversight.welcomed(jobs_pb2.Welcome(try_batches=True))
    leader.now = Training(1, leader.now.workers, changing=True)
    oversight.tick(2.0)
    assert leader.renewed == 0, "a resize is under way"
    leader.now = Training(1, leader.now.workers)
    oversight.tick(3.0)
    assert leader.renewed == 1
    oversight.goes(2, leader.now.workers)
    tasks = [message.task.try_batches for _, message in leader.told if message.task.HasField("try_batches")]
    assert [(task.min, task.max, task.generation) for task in tasks] == [(32, 128, 2)] * 4
    leader.now = Training(2, leader.now.workers)
    oversight.tick(4.0)
    assert leader.renewed == 1
    tried = jobs_pb2.TriedBatches(weights=9)
    oversight.stands("a", workers_pb2.WorkerStatus(generation=2, tried=tried), 5.0)
    assert oversight.tried == tried
