"""The example files in yarn_plugin/, which `python -m flexo_yarn.examples FOLDER` writes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from flexo_yarn import loan_settings
from flexo_yarn.site_settings import CAPACITY_SCHEDULER, RESOURCE_TYPES, YARN_SITE, as_example

EXAMPLES: Final = {
    "yarn-site.xml.example": YARN_SITE,
    "resource-types.xml.example": RESOURCE_TYPES,
    "capacity-scheduler.xml.example": CAPACITY_SCHEDULER,
    "loans.yarn-site.xml.example": loan_settings.LABELS,
    "loans.capacity-scheduler.xml.example": (
        *loan_settings.of_inference(loan_settings.LABEL, loan_settings.INFERENCE_QUEUE),
        *loan_settings.of_flex_queue(loan_settings.LABEL),
        *loan_settings.of_others("default"),
    ),
}

if __name__ == "__main__":
    for name, settings in EXAMPLES.items():
        Path(sys.argv[1], name).write_text(as_example(settings))
