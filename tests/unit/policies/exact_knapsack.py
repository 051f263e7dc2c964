"""The multiple-choice knapsack solved exactly by OR-Tools, in a process of its own.

In the tests' own process it would be beside gRPC and PyTorch, each of which brings libraries that OR-Tools
has too, of other versions: its import then ends in a segmentation fault.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

Items = tuple[Sequence[int], Sequence[float]]
"""Weights and values of one group."""


def best_value(groups: Sequence[Items], capacity: int, *, one_of_each: bool = False) -> float:
    """Of at most one item of each group, or exactly one, the greatest value within the capacity."""
    problem = {
        "groups": [(list(map(int, weights)), list(map(float, values))) for weights, values in groups],
        "capacity": capacity,
        "least": 1 if one_of_each else 0,
    }
    done = subprocess.run(
        [sys.executable, __file__], input=json.dumps(problem), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def _solve(groups: list[tuple[list[int], list[float]]], capacity: int, least: int) -> float:
    from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver("SCIP")
    room = solver.Constraint(0.0, float(capacity))
    objective = solver.Objective()
    objective.SetMaximization()
    for weights, values in groups:
        chosen = solver.Constraint(float(least), 1.0)
        for weight, value in zip(weights, values, strict=True):
            item = solver.BoolVar("")
            chosen.SetCoefficient(item, 1.0)
            room.SetCoefficient(item, float(weight))
            objective.SetCoefficient(item, value)
    parameters = pywraplp.MPSolverParameters()
    parameters.SetDoubleParam(pywraplp.MPSolverParameters.RELATIVE_MIP_GAP, 0.0)
    assert solver.Solve(parameters) == pywraplp.Solver.OPTIMAL
    return float(objective.Value())


if __name__ == "__main__":
    print(repr(_solve(**json.load(sys.stdin))))
