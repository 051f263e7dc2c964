"""Reads the text that flexo writes into Slurm's two comment fields: elastic ranges and satellites' tags.

Only the site writes AdminComment (slurm_plugin). The job's owner writes Comment, so a tag is a claim until
the adapter has compared its user with the base's.
"""

from __future__ import annotations

import re

from flexo.model.queue import ElasticRequest, JobKey, SatelliteTag
from flexo.model.ranges import BadRange, Range

_ELASTIC = re.compile(r"(?<!\S)flexo\{([^{}\s]*)\}(?!\S)")
_TAG = re.compile(
    r"flexo-satellite base=([0-9]{1,10}) restart=([0-9]{1,5})"
    r" grant=([A-Za-z0-9._:-]{1,64}) workers=(0|[1-9][0-9]{0,5})"
)

_LARGEST = (1 << 32) - 1
"""The largest number: Slurm's job ids and restart counts, and the messages that name them, have 32 bits."""


def elastic_request(admin_comment: str) -> ElasticRequest | None:
    """The request in AdminComment's token `flexo{workers=2-8;fungible;heterogeneous;batch=32-256;cohost}`;
    None if there is no good token.

    An opportunistic job has `opportunistic` or `opportunistic=auto`. Words of later releases are skipped.
    """
    tokens = _ELASTIC.findall(admin_comment)
    return _request(tokens[-1]) if tokens else None


def _request(inside: str) -> ElasticRequest | None:
    workers: Range | None = None
    batch: Range | None = None
    words: set[str] = set()
    try:
        for part in inside.split(";"):
            name, _, value = part.partition("=")
            if name == "workers":
                workers = Range.parse(value)
            elif name == "batch":
                batch = Range.parse(value)
            else:
                words.add(part)
    except BadRange:
        return None
    if workers is None:
        return None
    return ElasticRequest(
        workers,
        fungible="fungible" in words,
        batch=batch,
        heterogeneous="heterogeneous" in words,
        opportunistic=not words.isdisjoint(("opportunistic", "opportunistic=auto")),
        auto="opportunistic=auto" in words,
        cohost="cohost" in words,
    )


def satellite_tag(comment: str) -> SatelliteTag | None:
    """The tag that is a satellite's whole comment; None for every other comment."""
    match = _TAG.fullmatch(comment)
    if match is None or not 0 < int(match[1]) <= _LARGEST or int(match[2]) > _LARGEST:
        return None
    return SatelliteTag(JobKey(int(match[1]), int(match[2])), match[3], int(match[4]))
