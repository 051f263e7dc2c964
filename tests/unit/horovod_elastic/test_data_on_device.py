"""Mini-batches that are on the GPU before they are trained on, with a pretended GPU."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections import OrderedDict, defaultdict, namedtuple
from concurrent.futures import CancelledError
from types import MappingProxyType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from data_job import Job  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from pretended_gpu import PretendedGpu  # noqa: E402
from test_data_in_a_random_job import EVENTS, play, sizes  # noqa: E402
from thorough import examples  # noqa: E402
from torch.nn.utils.rnn import pack_sequence  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402

from horovod_elastic.data import ElasticDataset  # noqa: E402
from horovod_elastic.data.containers import replaced  # noqa: E402
from horovod_elastic.data.device import DeviceAhead, device_ahead  # noqa: E402
from horovod_elastic.data.reading import Fetch, InProcesses, InThread, ReadAhead  # noqa: E402

Pair = namedtuple("Pair", "images labels")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PretendedGpu:
    pretended = PretendedGpu()
    pretended.install(monkeypatch)
    return pretended


NUMBERS = itertools.count()


class Numbers(Dataset):
    """Sample i is i."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


class Slow(Numbers):
    def __getitem__(self, index: int) -> int:
        time.sleep(0.3)
        return index


class Failing(Numbers):
    def __getitem__(self, index: int) -> int:
        if index == 47:
            raise KeyError("number 47 cannot be read")
        return index


def dataset(samples: int, **options) -> ElasticDataset:
    # a name of its own: the dataset of the test before may not be gone yet
    name = f"data {next(NUMBERS)}"
    return ElasticDataset(Numbers(samples), 10, device="cuda", **{"name": name, **options})


def until(holds, what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def test_every_sample_arrives_once_an_epoch_before_training_sees_it(gpu):
    data = dataset(103)
    for _ in range(2):
        assert sorted(number for numbers in data for number in numbers.tolist()) == list(range(103))


def test_copies_are_made_in_a_thread_on_a_stream_of_their_own(gpu):
    given_out = list(dataset(60))
    assert len(gpu.copied_by) == 1
    assert threading.main_thread().name not in gpu.copied_by
    assert not gpu.consumer.pending
    assert [gpu.used_on[id(batch)] for batch in given_out] == [gpu.consumer] * 6


@pytest.mark.parametrize("most", [1, 3])
def test_the_number_of_copies_ahead_is_bounded(gpu, most):
    data = iter(dataset(300, prefetch=5, prefetch_to_device=most))
    for number in range(1, 20):
        next(data)
        until(lambda wanted=number + most: len(gpu.copied) == wanted, "fewer copies than asked for")
        time.sleep(0.01)
        assert len(gpu.copied) == number + most


def test_what_is_on_the_device_and_was_not_handed_out_is_not_consumed(gpu):
    data = dataset(200, prefetch=4, prefetch_to_device=4)
    seen = []
    for numbers in data:
        seen += numbers.tolist()
        if len(seen) == 50:
            break
    until(lambda: len(gpu.copied) == 9, "four mini-batches are not ahead")
    state = data.state_dict()
    assert sum(state["consumed"][1::2]) == 50
    other = ElasticDataset(Numbers(200), 7, device="cuda", name="other")
    other.load_state_dict(state)
    seen += [number for numbers in other for number in numbers.tolist()]
    assert sorted(seen) == list(range(200))


def test_what_was_copied_for_another_batch_size_is_thrown_away(gpu):
    data = dataset(200, prefetch=4, prefetch_to_device=4)
    seen = []
    for numbers in data:
        seen += numbers.tolist()
        data.batch_size = 13 if len(seen) == 50 else data.batch_size
    assert sorted(seen) == list(range(200))


class ReadingJob(Job):
    """Each worker reads ahead and copies to a GPU; the samples that it gets are those that count for it."""

    def __init__(self, *shape: int, **options) -> None:
        self._readers: dict[str, ReadAhead] = {}
        super().__init__(*shape, **options)

    def _draw(self, stop_after):
        batches = super()._draw(stop_after)
        for worker, batch in zip(self.workers, batches, strict=bool(batches)):
            self._check(worker, batch)
        return batches

    def _check(self, worker, batch) -> None:
        if worker.worker_id not in self._readers:
            reader = InThread(Fetch(Numbers(self.samples), None), pin=False)
            self._readers[worker.worker_id] = ReadAhead(reader, device_ahead("data", "cuda", 2))
        epoch = worker.share.allotment.epoch
        upcoming = [(epoch, ranges) for ranges in worker.share.upcoming()]
        numbers = self._readers[worker.worker_id].take((epoch, batch.ranges), upcoming, indices)
        assert numbers.tolist() == indices((epoch, batch.ranges)).tolist()


def indices(key):
    return torch.cat([torch.arange(each.start, each.end) for each in key[1]])


@settings(max_examples=examples(24), deadline=None)
@given(sizes, st.data())
def test_so_it_is_while_workers_come_and_go_and_die(shape, data):
    with pytest.MonkeyPatch.context() as patch:
        PretendedGpu().install(patch)
        samples, batch_size, workers = shape
        partitions = data.draw(st.integers(1, samples))
        play(ReadingJob(samples, batch_size, workers, partitions=partitions), EVENTS, data)


def test_what_the_reader_raises_reaches_the_script_in_its_turn(gpu):
    data = ElasticDataset(
        Failing(60), 10, shuffle="partitions", partitions=1, prefetch=5, device="cuda", name="failing"
    )
    batches = iter(data)
    seen = [number for _ in range(4) for number in next(batches).tolist()]
    with pytest.raises(KeyError, match="number 47"):
        next(batches)
    assert seen == list(range(40))


@pytest.mark.processes
@pytest.mark.parametrize("processes", [0, 1])
def test_the_thread_that_copies_ends_with_the_dataset(gpu, processes):
    before = set(threading.enumerate())
    data = ElasticDataset(Slow(60), 2, prefetch=4, device="cuda", num_workers=processes, name="slow")
    batches = iter(data)
    next(batches)
    mine = [each for each in threading.enumerate() if each not in before]
    assert any(each.name.startswith("flexo-device") for each in mine)
    del data, batches
    gc.collect()
    until(lambda: not any(each.is_alive() for each in mine), "a thread has outlived its dataset")


@pytest.mark.processes
def test_who_waits_for_a_read_when_the_dataset_goes_does_not_wait_forever():
    options = {"pin": False, "context": "fork", "worker_init": None}
    reader = InProcesses(Fetch(Slow(9), None), processes=1, **options)
    promised = [reader.read(torch.tensor([number])) for number in range(9)]
    reader.close()
    with pytest.raises(CancelledError):
        promised[-1].result(timeout=60)


def test_in_host_memory_nothing_is_copied():
    before = threading.active_count()
    assert device_ahead("data", None, 2) is device_ahead("data", "cpu", 2) is None
    data = ElasticDataset(Numbers(40), 10, device="cpu", name="in host memory")
    assert sorted(number for numbers in data for number in numbers.tolist()) == list(range(40))
    assert threading.active_count() <= before + 1  # the reader's


def test_containers_keep_their_class_and_everything_else_stays_as_it_is(gpu):
    ones, thing = torch.ones(2), SimpleNamespace(tensor=torch.ones(1))
    by_default = defaultdict(list, {"a": ones})
    batch = [
        Pair(ones, [ones, ("name", 3)]), {"a": {"b": ones}}, OrderedDict(a=ones), by_default,
        MappingProxyType({"a": ones}), thing, None, "text", b"bytes", ones.to_sparse(), pack_sequence([ones]),
    ]  # fmt: skip
    ahead = device_ahead("data", "cuda", 2)
    assert isinstance(ahead, DeviceAhead)
    reader = SimpleNamespace(result=lambda: batch)
    there = ahead.receive(ahead.copy(reader).result())
    assert [type(each) for each in there] == [type(each) for each in batch]
    assert there[0].images.tolist() == there[0].labels[0].tolist() == [1, 1]
    assert there[0].labels[1] == ("name", 3)
    assert [there[1]["a"]["b"], there[2]["a"], there[3]["a"], there[4]["a"]] == gpu.copied[2:]
    assert there[3].default_factory is list
    assert all(one is other for one, other in zip(there[5:], batch[5:], strict=True))
    assert len(gpu.copied) == len(gpu.used_on) == 6
    assert batch[1]["a"]["b"] is by_default["a"] is ones
    ahead.close()


def test_a_container_of_a_class_that_needs_more_than_a_dictionary_is_pinned_too():
    kept = replaced(defaultdict(int, a=1), lambda each: each + 1)
    assert kept == {"a": 2}
    assert kept["new"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:1"}, r"device is 'cuda:1'.* 1 GPUs.*'cpu', 'cuda'"),
        ({"device": "mps"}, "device is 'mps'; allowed: 'cpu', 'cuda'"),
        ({"prefetch_to_device": 0}, "prefetch_to_device is 0; allowed: 1 to 2"),
        ({"prefetch_to_device": 4, "prefetch": 3}, "prefetch_to_device is 4; allowed: 1 to 3"),
    ],
)
def test_a_device_that_cannot_be_is_refused(gpu, options, message):
    with pytest.raises(ValueError, match=message):
        ElasticDataset(Numbers(10), 2, **{"device": "cuda", **options})


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=r"device is 'cuda'.* 0 GPUs; allowed here: 'cpu'$"):
        ElasticDataset(Numbers(10), 2, device="cuda")
