"""The settings of YARN that flexo needs, each with its reason: for examples, labs and the doctor."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

FLEX_QUEUE: Final = "flex"
"""The queue, below root, of what YARN may take back from flexo's jobs."""


class Rule(enum.Enum):
    """How a site's value must compare with flexo's."""

    EQUAL = "it must be"
    AT_LEAST = "it must be at least"
    AT_MOST = "it must be at most"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of YARN: its name, the value that flexo uses, and why."""

    name: str
    value: str
    default: str
    """YARN's own default; "": none."""
    why: str
    rule: Rule = Rule.EQUAL
    needed: str = ""
    """The value that `rule` compares with; "": `value`."""
    vital: bool = True
    """Whether something that flexo promises does not work otherwise; else it works less well."""

    @property
    def bound(self) -> str:
        """The value that a site's value is compared with."""
        return self.needed or self.value

    def suits(self, value: str) -> bool:
        """Whether a site's value is as flexo needs it. Raises ValueError for a text that is no number."""
        if self.rule is Rule.EQUAL:
            return value.strip().lower() == self.bound.strip().lower()
        if self.rule is Rule.AT_LEAST:
            return float(value) >= float(self.bound)
        return float(value) <= float(self.bound)


_PREEMPTION: Final = "yarn.resourcemanager.monitor.capacity.preemption"
_QUEUE: Final = f"yarn.scheduler.capacity.root.{FLEX_QUEUE}"

YARN_SITE: Final = (
    Setting(
        "yarn.resourcemanager.scheduler.class",
        "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler",
        "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler",
        "flexo relies on this scheduler's preemption and queues; it refuses FairScheduler.",
    ),
    Setting(
        "yarn.resourcemanager.scheduler.monitor.enable",
        "true",
        "false",
        "Without it, YARN preempts nothing, and a job's growth would keep others waiting.",
    ),
    Setting(
        f"{_PREEMPTION}.monitoring_interval",
        "1000",
        "3000",
        "Milliseconds between two decisions about preemption: the warning comes that much earlier.",
        rule=Rule.AT_MOST,
        needed="3000",
        vital=False,
    ),
    Setting(
        f"{_PREEMPTION}.max_wait_before_kill",
        "15000",
        "15000",
        "Milliseconds from the warning to the kill: the time in which a job shrinks without losing a batch.",
        rule=Rule.AT_LEAST,
        needed="10000",
    ),
    Setting(
        f"{_PREEMPTION}.natural_termination_factor",
        "1.0",
        "0.2",
        "The part of the missing resources that one decision takes. With less, a request is served in steps.",
        rule=Rule.AT_LEAST,
        vital=False,
    ),
    Setting(
        f"{_PREEMPTION}.total_preemption_per_round",
        "1.0",
        "0.1",
        "The part of the cluster that one decision may take. On a small cluster, a tenth is less than a GPU.",
        rule=Rule.AT_LEAST,
        vital=False,
    ),
    Setting(
        f"{_PREEMPTION}.select_based_on_reserved_containers",
        "true",
        "false",
        "Take containers from the node where the waiting request has its reservation.",
        vital=False,
    ),
    Setting(
        "yarn.resourcemanager.recovery.enabled",
        "true",
        "false",
        "Applications survive a restart of the ResourceManager.",
    ),
    Setting(
        "yarn.resourcemanager.work-preserving-recovery.enabled",
        "true",
        "true",
        "Their containers go on meanwhile.",
    ),
    Setting(
        "yarn.resourcemanager.connect.retry-interval.ms",
        "3000",
        "30000",
        "Milliseconds until a NodeManager looks again for a ResourceManager that has restarted.",
        rule=Rule.AT_MOST,
        needed="10000",
        vital=False,
    ),
    Setting(
        "yarn.nodemanager.recovery.enabled",
        "true",
        "false",
        "Containers survive a restart of their NodeManager.",
    ),
    Setting(
        "yarn.nodemanager.recovery.supervised",
        "true",
        "false",
        "A NodeManager that ends leaves its containers alone: it is started again at once.",
        vital=False,
    ),
    Setting(
        "yarn.nodemanager.sleep-delay-before-sigkill.ms",
        "5000",
        "250",
        "Milliseconds from SIGTERM to SIGKILL: the time in which a worker leaves its job in order.",
        rule=Rule.AT_LEAST,
        needed="1000",
        vital=False,
    ),
    Setting(
        "yarn.cluster.max-application-priority",
        "10000",
        "0",
        'The upper half is flexod\'s, where it puts jobs in order (order = "policy").',
        rule=Rule.AT_LEAST,
        needed="2000",
        vital=False,
    ),
    Setting(
        "yarn.acl.enable",
        "true",
        "false",
        "Without it, any user may kill any application. flexod needs rights of its own on the flex queue.",
    ),
)
"""yarn-site.xml."""

RESOURCE_TYPES: Final = (
    Setting("yarn.resource-types", "yarn.io/gpu", "", "YARN counts GPUs as a resource of this name."),
)
"""resource-types.xml."""

CAPACITY_SCHEDULER: Final = (
    Setting(
        "yarn.scheduler.capacity.resource-calculator",
        "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator",
        "org.apache.hadoop.yarn.util.resource.DefaultResourceCalculator",
        "The default counts memory only: GPUs would be given out without limit.",
    ),
    Setting(
        "yarn.scheduler.capacity.root.acl_administer_queue",
        " ",
        "*",
        "By default, every user may kill every application: rights of a queue are rights of all below it.",
    ),
    Setting(
        f"{_QUEUE}.acl_administer_queue",
        "flexo",
        " ",
        "flexod's account may end containers here, and set priorities and time limits.",
        vital=False,
    ),
    Setting(
        f"{_QUEUE}.capacity",
        "5",
        "",
        "Percent of the cluster that YARN never takes back from flexo. At least 1, and at least one GPU's "
        "share: with less, a guarantee rounds to nothing, and YARN preempts on an idle cluster (YARN-11073).",
        rule=Rule.AT_LEAST,
        needed="1",
    ),
    Setting(
        f"{_QUEUE}.maximum-capacity",
        "100",
        "100",
        "Jobs may grow into all that is idle.",
        vital=False,
    ),
    Setting(
        f"{_QUEUE}.user-limit-factor",
        "-1",
        "1",
        "One user may have the whole queue: flexod shares it among users.",
        vital=False,
    ),
    Setting(
        f"{_QUEUE}.maximum-am-resource-percent",
        "1.0",
        "0.1",
        "Each elastic job has an unmanaged ApplicationMaster here, which uses no resources.",
        rule=Rule.AT_LEAST,
        needed="0.5",
        vital=False,
    ),
)
"""capacity-scheduler.xml. root.queues has the flex queue besides the site's own."""


def as_xml(settings: Iterable[tuple[str, str]]) -> str:
    """A configuration file of Hadoop with these names and values."""
    properties = "".join(
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings
    )
    return f"<configuration>\n{properties}</configuration>\n"


def as_example(settings: Iterable[Setting]) -> str:
    """An example file, in which each setting has its reason and YARN's default."""
    parts = ["<configuration>\n"]
    for each in settings:
        default = f"YARN's default: {each.default}. " if each.default else ""
        parts.append(
            f"  <!-- {escape(default)}{escape(each.why)} -->\n"
            f"  <property><name>{escape(each.name)}</name><value>{escape(each.value)}</value></property>\n\n"
        )
    return "".join(parts).rstrip() + "\n</configuration>\n"
