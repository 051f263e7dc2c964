"""The profile of an application that is small enough to reckon with: steps take a quarter second a sample."""

from __future__ import annotations

from pathlib import Path

from flexo_simulation.pollux_profiles import Application, Declared

_PLACEMENTS = """placement,local_bsz,step_time,sync_time
1,4,1,0
1,16,4,0
2,4,1.5,0.5
2,16,4.5,0.5
12,4,2.5,1.5
12,16,5.5,1.5
"""
_SCALABILITY = """num_nodes,num_replicas,local_bsz,step_time,sync_time
2,2,4,2,1
2,2,16,5,1
2,4,4,4,3
2,4,16,7,3
3,3,4,3,2
3,3,16,6,2
"""
_VALIDATION = {
    8: "progress,iteration,metric,grad_sqr,grad_var\n100,100,1,1,10\n200,200,1,2,20\n",
    32: "progress,iteration,metric,grad_sqr,grad_var\n101,50,1,3,30\n199,100,1,6,40\n",
}


def write_application(folder: Path, suffix: str = "") -> Path:
    """Its files in `folder`, which is made. `suffix`: of the files with step times, as in `-rtx`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"placements{suffix}.csv").write_text(_PLACEMENTS)
    (folder / f"scalability{suffix}.csv").write_text(_SCALABILITY)
    for batch, text in _VALIDATION.items():
        (folder / f"validation-{batch}.csv").write_text(text)
    return folder


def small_application(folder: Path) -> Application:
    """Two epochs of 100 and 99 steps of 8 samples, on one GPU 2 s each."""
    return Application("small", Declared(max_epochs=2), write_application(folder))
