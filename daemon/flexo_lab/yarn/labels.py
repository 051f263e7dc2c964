"""Gives the inference nodes of a YARN lab their label, as an administrator does with `yarn rmadmin`."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from flexo_lab.errors import LabFailed
from flexo_lab.yarn.layout import NODE_PORT, WEB_PORT, YarnLayout
from flexo_lab.yarn.spec import YarnLabSpec
from flexo_yarn.loan_settings import LABEL

_WITHIN_S = 30.0


def label_inference_nodes(layout: YarnLayout, spec: YarnLabSpec) -> None:
    """Make the label, and give it to all inference nodes. Raises LabFailed."""
    _post(layout, "add-node-labels", {"nodeLabelInfo": [{"name": LABEL, "exclusivity": True}]})
    numbers = range(spec.nodes + 1, len(spec.node_names) + 1)
    nodes = [{"nodeId": f"{layout.node(each)}:{NODE_PORT}", "labels": [LABEL]} for each in numbers]
    _post(layout, "replace-node-to-labels", {"nodeToLabels": nodes})


def _post(layout: YarnLayout, path: str, what: Mapping[str, Any]) -> None:
    url = f"http://{layout.resource_managers[0]}:{WEB_PORT}/ws/v1/cluster/{path}?user.name=root"
    request = urllib.request.Request(
        url, json.dumps(what).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_WITHIN_S):
            pass
    except (OSError, urllib.error.HTTPError) as error:
        raise LabFailed(f"the ResourceManager gives no labels to nodes: {path}: {error}") from error
