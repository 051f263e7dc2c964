"""The dynamic data pipeline, for training scripts (Amoeba, section 5.3): every sample exactly once an epoch.

`ElasticDataset` replaces a DataLoader. `ElasticShardSampler` goes into one that the script keeps.
`elastic_shard_generator` says where to read, and reads nothing. All three work alone, under horovodrun, and
in a job of flexo's, where partitions are handed out by the job's leader.
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
