"""The settings of YARN for loans: inference servers have a node label, and the flex queue may go there."""

from __future__ import annotations

from typing import Final

from flexo_yarn.site_settings import FLEX_QUEUE, Rule, Setting

LABEL: Final = "inference"
"""The node label of inference servers in examples and labs."""
INFERENCE_QUEUE: Final = "infer"
"""The inference cluster's own queue there."""
_ROOT: Final = "yarn.scheduler.capacity.root"
FLEX_LABELS: Final = f"{_ROOT}.{FLEX_QUEUE}.accessible-node-labels"

LABELS: Final = (
    Setting("yarn.node-labels.enabled", "true", "false", "Inference servers have a label of their own."),
    Setting(
        "yarn.node-labels.fs-store.root-dir",
        "hdfs:///yarn/node-labels",
        "file:///tmp/hadoop-yarn-<user>/node-labels",
        "Where the ResourceManager keeps labels. The default does not survive a restart of the host.",
        vital=False,
    ),
)
"""yarn-site.xml."""


def of_flex_queue(label: str) -> tuple[Setting, ...]:
    """What lets satellites onto servers with this label, as long as inference does not want them."""
    return (
        Setting(FLEX_LABELS, label, "", "Satellites may be placed on inference servers; flexod says when."),
        Setting(
            f"{_ROOT}.{FLEX_QUEUE}.accessible-node-labels.{label}.capacity",
            "0",
            "0",
            "Percent of the inference servers that YARN never takes back from flexo.",
            rule=Rule.AT_MOST,
        ),
        Setting(
            f"{_ROOT}.{FLEX_QUEUE}.accessible-node-labels.{label}.maximum-capacity",
            "100",
            "100",
            "All of them can be on loan.",
            rule=Rule.AT_LEAST,
            needed="1",
        ),
    )


def of_inference(label: str, queue: str) -> tuple[Setting, ...]:
    """What gives the servers with this label to the inference cluster's queue."""
    own = f"{_ROOT}.{queue}"
    return (
        Setting(
            f"{_ROOT}.accessible-node-labels.{label}.capacity",
            "100",
            "0",
            "The queues below root have all servers with the label.",
        ),
        Setting(f"{own}.accessible-node-labels", label, "", "The inference cluster's queue has its servers."),
        Setting(f"{own}.accessible-node-labels.{label}.capacity", "100", "0", "All of them are its own."),
        Setting(f"{own}.default-node-label-expression", label, "", "Its applications need not say so."),
        Setting(f"{own}.capacity", "0", "", "It has no other nodes."),
        Setting(f"{own}.maximum-capacity", "0", "100", "It gets no other nodes."),
    )


def of_others(queue: str) -> tuple[Setting, ...]:
    """What keeps an ordinary queue away from servers with a label."""
    why = "Nodes without a label only. By default a queue may go wherever root may: everywhere."
    return (Setting(f"{_ROOT}.{queue}.accessible-node-labels", " ", "", why),)
