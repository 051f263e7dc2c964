"""What a training script sees of the data pipeline, in one process without Horovod."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest
from thorough import rare

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset  # noqa: E402

from horovod_elastic.data import (  # noqa: E402
    ElasticDataset,
    ElasticShardSampler,
    Range,
    elastic_shard_generator,
)


class Numbers(Dataset):
    """Sample i is i, and by whom it was read."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.reads.append(index)
        return index, os.getpid()


class Failing(Numbers):
    def __getitem__(self, index: int) -> tuple[int, int]:
        if index == 7:
            raise KeyError("number seven cannot be read")
        return super().__getitem__(index)


def epoch_of(data) -> list[int]:
    return [number for numbers, *_ in data for number in numbers.tolist()]


def test_every_sample_comes_once_in_another_order_each_epoch():
    data = ElasticDataset(Numbers(103), batch_size=10, seed=1)
    first, second = epoch_of(data), epoch_of(data)
    assert sorted(first) == sorted(second) == list(range(103))
    assert first != second
    assert data.epoch == 2


def test_the_order_depends_on_the_seed_alone():
    orders = [epoch_of(ElasticDataset(Numbers(103), batch_size=10, seed=seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_by_partitions_samples_follow_each_other():
    data = ElasticDataset(Numbers(100), batch_size=10, shuffle="partitions", partitions=10)
    batches = [numbers.tolist() for numbers, _ in data]
    assert all(batch == list(range(batch[0], batch[0] + 10)) for batch in batches)
    assert sorted(batch[0] for batch in batches) != [batch[0] for batch in batches]


def test_its_length_is_the_number_of_mini_batches_that_are_left():
    data = ElasticDataset(Numbers(103), batch_size=10)
    for already, _ in enumerate(data, start=1):
        assert len(data) == 11 - already
    assert len(data) == 11


def test_a_loop_that_is_left_goes_on_where_it_was():
    data = ElasticDataset(Numbers(100), batch_size=10)
    seen = []
    for numbers, _ in data:
        seen += numbers.tolist()
        if len(seen) == 40:
            break
    assert data.samples_left == 60
    assert sorted(seen + epoch_of(data)) == list(range(100))


def test_its_state_goes_on_in_another_process():
    data = ElasticDataset(Numbers(100), batch_size=10, seed=4)
    seen = []
    for numbers, _ in data:
        seen += numbers.tolist()
        if len(seen) == 40:
            state = data.state_dict()
            break
    other = ElasticDataset(Numbers(100), batch_size=7, seed=99, name="other")
    other.load_state_dict(state)
    assert sorted(seen + epoch_of(other)) == list(range(100))
    assert epoch_of(other) != epoch_of(ElasticDataset(Numbers(100), batch_size=7, seed=99, name="third"))


def test_a_state_of_another_dataset_is_refused():
    state = ElasticDataset(Numbers(100), batch_size=10, name="hundred").state_dict()
    with pytest.raises(ValueError, match=r"'ten' .*\b10 samples\b.*\b100\b"):
        ElasticDataset(Numbers(10), batch_size=10, name="ten").load_state_dict(state)


def test_set_epoch_begins_another_epoch_and_does_nothing_in_the_middle_of_one():
    data = ElasticDataset(Numbers(100), batch_size=10)
    next(iter(data))
    data.set_epoch(0)
    assert data.samples_left == 90
    data.set_epoch(5)
    assert (data.epoch, data.samples_left) == (5, 100)
    with pytest.raises(ValueError, match="epoch is -1"):
        data.set_epoch(-1)


def test_the_batch_size_may_change():
    data = ElasticDataset(Numbers(100), batch_size=10)
    sizes = []
    for numbers, _ in data:
        sizes.append(len(numbers))
        if len(sizes) == 3:
            data.batch_size = 20
    assert sizes == [10, 10, 10, 10, 20, 20, 20]
    with pytest.raises(ValueError, match=r"batch_size is 0\b.*1 or more"):
        data.batch_size = 0


def test_a_tensor_dataset_gives_copies_of_its_samples():
    tensors = torch.arange(50), torch.arange(50) * 2
    data = ElasticDataset(TensorDataset(*tensors), batch_size=10, shuffle="partitions", partitions=5)
    for numbers, doubles in data:
        assert torch.equal(numbers * 2, doubles)
        numbers.zero_()
    assert torch.equal(tensors[0], torch.arange(50))


def test_a_dataset_that_reads_many_samples_at_once_is_asked_for_many():
    class Many(Numbers):
        def __getitems__(self, indices: list[int]) -> list[int]:
            self.reads.append(len(indices))
            return indices

    many = Many(40)
    data = ElasticDataset(many, batch_size=10, collate_fn=lambda numbers: (torch.tensor(numbers),))
    assert sorted(epoch_of(data)) == list(range(40))
    assert many.reads == [10] * 4


def test_samples_are_read_ahead_in_another_thread():
    threads = set()
    began = threading.Semaphore(0)

    class Watched(Numbers):
        def __getitem__(self, index: int) -> tuple[int, int]:
            threads.add(threading.current_thread())
            began.release()
            return super().__getitem__(index)

    data = iter(ElasticDataset(Watched(60), batch_size=10, prefetch=3))
    next(data)
    for _ in range(10 * (1 + 3)):  # the one that was handed out, and those that are to come
        assert began.acquire(timeout=60)
    assert threading.main_thread() not in threads
    assert len(threads) == 1


def test_nothing_is_read_twice_but_at_the_end_of_an_epoch():
    numbers = Numbers(1000)
    data = ElasticDataset(numbers, batch_size=10, seed=3)
    epoch_of(data)
    assert sorted(numbers.reads) == list(range(1000))


@pytest.mark.processes
@pytest.mark.parametrize(
    "context",
    ["fork", rare("spawn"), rare("forkserver")],
)
def test_processes_read_for_all_epochs(context):
    data = ElasticDataset(Numbers(60), batch_size=7, num_workers=2, multiprocessing_context=context)
    pids = set()
    for _ in range(2):
        seen = []
        for numbers, by in data:
            seen += numbers.tolist()
            pids |= set(by.tolist())
        assert sorted(seen) == list(range(60))
    assert len(pids) == 2
    assert os.getpid() not in pids
    del data
    gc.collect()
    deadline = time.monotonic() + 30
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a process that reads has outlived its dataset"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, gone before it was read
        return False


@pytest.mark.processes
@pytest.mark.parametrize("processes", [0, 1])
def test_what_the_dataset_raises_reaches_the_script(processes):
    data = ElasticDataset(Failing(20), batch_size=5, num_workers=processes)
    with pytest.raises((KeyError, RuntimeError), match="number seven cannot be read"):
        epoch_of(data)


@pytest.mark.processes
def test_a_script_can_keep_its_own_loader():
    sampler = ElasticShardSampler(Numbers(103), batch_size=10, seed=2)
    loader = DataLoader(Numbers(103), batch_sampler=sampler, num_workers=2)
    for epoch in range(2):
        assert len(loader) == 11
        seen = []
        for numbers, _ in loader:
            seen += numbers.tolist()
            sampler.record_batch()
        assert sorted(seen) == list(range(103))
        sampler.set_epoch(epoch + 1)


@pytest.mark.processes
def test_what_the_loader_has_drawn_and_the_script_not_recorded_is_drawn_again():
    sampler = ElasticShardSampler(Numbers(100), batch_size=10)
    loader = DataLoader(Numbers(100), batch_sampler=sampler, num_workers=1)
    seen = []
    for numbers, _ in loader:
        if len(seen) == 40:
            break
        seen += numbers.tolist()
        sampler.record_batch()
    state = sampler.state_dict()
    for numbers, _ in loader:
        seen += numbers.tolist()
        sampler.record_batch()
    assert sorted(seen) == list(range(100))
    assert sum(state["consumed"][1::2]) == 40


def test_forgetting_to_record_is_noticed():
    sampler = ElasticShardSampler(Numbers(100), batch_size=10)
    list(sampler)
    with pytest.raises(RuntimeError, match=r"record_batch\(\) never called"):
        sampler.set_epoch(1)
    for _ in range(10):
        sampler.record_batch()
    with pytest.raises(ValueError, match="more mini-batches recorded"):
        sampler.record_batch()


def test_a_script_with_a_reader_of_its_own_is_told_where_to_read():
    shards = elastic_shard_generator(samples=100, batch_size=10, partitions=4)
    for _ in range(2):
        read = []
        for ranges in shards:
            assert all(isinstance(each, Range) for each in ranges)
            assert sum(length for _, length in ranges) == 10
            read += [number for start, length in ranges for number in range(start, start + length)]
        assert sorted(read) == list(range(100))
    assert shards.epoch == 2


def test_it_is_told_ahead():
    shards = elastic_shard_generator(samples=100, batch_size=10, partitions=4, prefetch=3)
    told = iter(shards)
    next(told)
    upcoming = shards.upcoming()
    assert [next(told) for _ in range(3)] == upcoming


def test_two_datasets_need_two_names():
    one = ElasticDataset(Numbers(10), batch_size=2)
    with pytest.raises(ValueError, match="another dataset called 'data'"):
        ElasticDataset(Numbers(10), batch_size=2)
    other = ElasticDataset(Numbers(10), batch_size=2, name="validation")
    assert sorted(epoch_of(one)) == sorted(epoch_of(other))
    del one
    ElasticDataset(Numbers(10), batch_size=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; allowed: 1 or more"),
        ({"partitions": 11}, "partitions is 11; allowed: 1 to 10"),
        ({"partitions": 0}, "partitions is 0; allowed: 1 to 10"),
        ({"seed": -1}, "seed is -1"),
        ({"shuffle": "no"}, "shuffle is 'no'; allowed: 'samples', 'partitions'"),
        ({"num_workers": -1}, "num_workers is -1"),
        ({"prefetch": 0}, "prefetch 0"),
    ],
)
def test_what_cannot_be_is_said(arguments, message):
    with pytest.raises(ValueError, match=message):
        ElasticDataset(Numbers(10), **{"batch_size": 2, **arguments})


def test_a_stream_of_samples_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(ValueError, match="elastic_shard_generator"):
        ElasticDataset(Stream(), batch_size=2)
    with pytest.raises(ValueError, match="has 0 samples"):
        ElasticDataset(Numbers(0), batch_size=2)


def test_it_works_alone_beside_horovods_python_files_without_their_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod.torch", ModuleType("horovod.torch"))
    assert sorted(epoch_of(ElasticDataset(Numbers(40), batch_size=10))) == list(range(40))


def test_horovods_state_commits_and_restores_it():
    state_module = pytest.importorskip("horovod.torch.elastic.state")
    data = ElasticDataset(Numbers(100), batch_size=10, seed=1)
    state = state_module.TorchState(data=data, step=0)
    assert state.data is data
    seen = []
    for step, (numbers, _) in enumerate(data, start=1):
        if step <= 4:
            seen += numbers.tolist()
        if step == 4:
            state.save()
        if step == 6:
            break
    state.restore()
    assert data.samples_left == 60
    assert sorted(seen + epoch_of(data)) == list(range(100))
    state.restore()
    assert (data.epoch, data.samples_left) == (0, 60)
