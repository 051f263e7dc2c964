"""The dynamic data pipeline, for training scripts (Amoeba, section 5.3): every sample exactly once an epoch.

`ElasticDataset` replaces a DataLoader. `ElasticShardSampler` goes into a DataLoader that the script keeps.
`elastic_shard_generator` says where to read, and reads nothing. All three work in a single process, under
horovodrun, and in a flexo job, in which the job's leader hands out partitions.
"""

from horovod_elastic.data.allotment import OutOfStep
from horovod_elastic.data.dataset import ElasticDataset
from horovod_elastic.data.elastic import register
from horovod_elastic.data.generator import ElasticShards, elastic_shard_generator
from horovod_elastic.data.sampler import ElasticShardSampler
from horovod_elastic.ranges import Range

__all__ = [
    "ElasticDataset",
    "ElasticShardSampler",
    "ElasticShards",
    "OutOfStep",
    "Range",
    "elastic_shard_generator",
]

register()
