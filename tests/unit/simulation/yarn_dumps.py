"""Dumps of YARN's applications as text: made up one by one, as Hadoop 3.5.0 or older releases write them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

BEGIN_MS = 1_790_000_000_000
GPU = "yarn.io/gpu"


def application(
    number: int = 1, submit: float = 0, wait: float = 60, elapsed: float = 600, gpus: float = 4, **said: Any
) -> dict[str, Any]:
    """An application that held `gpus` for `elapsed` s until its end; `said` stands in the values instead.

    Its ApplicationMaster starts at once; it waits for GPUs then. A None in `said` leaves a value out.
    """
    submitted = BEGIN_MS + int(1000 * submit)
    values = {
        "id": name(number),
        "user": "ann",
        "name": "train",
        "queue": "root.default",
        "state": "FINISHED",
        "applicationTags": "",
        "startedTime": submitted,
        "launchTime": submitted + 100,
        "finishedTime": submitted + int(1000 * (wait + elapsed)),
        "elapsedTime": int(1000 * (wait + elapsed)),
        **gpu_seconds(round(gpus * elapsed)),
    }
    return {key: value for key, value in {**values, **said}.items() if value is not None}


def gpu_seconds(value: object) -> dict[str, Any]:
    """What an application has used, with these GPU-seconds."""
    amounts = {"memory-mb": 1, GPU: value, "vcores": 1}
    return {"resourceSecondsMap": {"entry": [{"key": key, "value": each} for key, each in amounts.items()]}}


def name(number: int) -> str:
    """YARN's name of the application with this number."""
    return f"application_{BEGIN_MS}_{number:04d}"


def satellites(number: int, base: int, gpus: float, elapsed: float, **said: Any) -> dict[str, Any]:
    """The flex application of a job."""
    tags = {"applicationTags": f"flexo:base={name(base)}", "launchTime": -1, "queue": "root.flex"}
    return application(number, wait=0, elapsed=elapsed, gpus=gpus, **(tags | said))


def dump(applications: Iterable[object]) -> str:
    """The ResourceManager's answer about them."""
    return json.dumps({"apps": {"app": list(applications)}})


def as_before_3_5(one: dict[str, Any]) -> str:
    """The answer about one application as releases before 3.5 write it: repeated keys, numbers as texts."""
    entries = ",".join(
        f'"entry":{json.dumps({"key": each["key"], "value": str(each["value"])})}'
        for each in one["resourceSecondsMap"]["entry"]
    )
    rest = json.dumps({**one, "resourceSecondsMap": 0})
    whole = rest.replace('"resourceSecondsMap": 0', f'"resourceSecondsMap":{{{entries}}}')
    return f'{{"apps":{{"app":[{whole}]}}}}'


def nodes(*gpus: object) -> str:
    """The ResourceManager's answer about its nodes: the GPUs of each."""
    return json.dumps({"nodes": {"node": [_node(each) for each in gpus]}})


def _node(gpus: object) -> dict[str, Any]:
    amounts = [{"name": "vcores", "value": 8}, {"name": GPU, "value": gpus}]
    return {"totalResource": {"resourceInformations": {"resourceInformation": amounts}}}
