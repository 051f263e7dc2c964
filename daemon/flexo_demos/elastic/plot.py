"""The sizes of the demo's story, and its training script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "digits"


@dataclass(frozen=True, slots=True)
class Plot:
    """Sizes of the story. The rigid job fills all nodes but one, so it needs GPUs that satellites hold."""

    nodes: int = 3
    gpus_per_node: int = 3
    most_workers: int = 4
    epochs: int = 30
    batch: int = 48
    step_seconds: float = 0.1
    """Pause in each step that stands for the GPUs' work. Without it the job would end within two polls."""
    rigid_seconds: int = 20
    calm_batches: int = 60
    """Number of batches at full size before the rigid job is submitted."""
    servers: int = 2
    """Inference servers, where the story has any. flexod keeps one idle for inference, and lends one."""

    @property
    def rigid_nodes(self) -> int:
        """Nodes that the rigid job fills."""
        return self.nodes - 1

    def script_arguments(self, logs: Path) -> list[str]:
        """The arguments of the training script, whose logs go to the folder `logs`."""
        return [
            *("--epochs", str(self.epochs), "--batch", str(self.batch)),
            *("--step-seconds", str(self.step_seconds), "--log-dir", str(logs)),
        ]
