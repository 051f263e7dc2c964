"""The tables of states.py: nothing happens outside of them, and the examples go through every row."""

from __future__ import annotations

import enum
import inspect
from typing import Any

import pytest
import test_membership
import test_membership_pauses
import test_takeover

from horovod_elastic.leader.membership.roster import Agent, Worker
from horovod_elastic.leader.membership.states import TABLES, Machine, NoSuchTransition, Table

Row = tuple[str, enum.Enum, enum.Enum]


def events(table: Table[Any, Any]) -> type[enum.Enum]:
    """All events of a table, by one that it has."""
    return type(next(event for _, event, _ in table.transitions()))


ROWS = [(table.of, state, event) for table in TABLES for state, event, _ in table.transitions()]
OUTSIDE = [
    pytest.param(table, state, event, id=f"{table.of}-{state.value}-{event.name}")
    for table in TABLES
    for state in table.rows
    for event in events(table)
    if event not in table.rows[state]
]


@pytest.fixture(scope="module")
def reached() -> set[Row]:
    """The rows that the examples of these modules of tests go through."""
    found: set[Row] = set()
    after = Table.after

    def noted(table: Table[Any, Any], state: Any, event: Any) -> Any:
        then = after(table, state, event)
        found.add((table.of, state, event))
        return then

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "after", noted)
        for module in (test_membership, test_membership_pauses, test_takeover):
            for name, example in vars(module).items():
                if name.startswith("test_") and not inspect.signature(example).parameters:
                    example()
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1].value}-{row[2].name}")
def test_an_example_goes_through_every_row(row: Row, reached: set[Row]) -> None:
    assert row in reached


@pytest.mark.parametrize(("table", "state", "event"), OUTSIDE)
def test_what_a_table_does_not_allow_raises_and_moves_nothing(
    table: Table[Any, Any], state: enum.Enum, event: enum.Enum
) -> None:
    machine = Machine(table, state)
    with pytest.raises(NoSuchTransition, match=state.value):
        machine.happens(event)
    assert machine.state is state


def test_a_state_changes_by_events_only() -> None:
    worker, agent = Worker("w1", "b1", 0, False), Agent("b1", 1, True)
    for thing in (worker, worker.life, agent.life):
        with pytest.raises(AttributeError):
            thing.state = thing.state  # type: ignore[union-attr, misc]
    worker.is_gone()
    with pytest.raises(NoSuchTransition):
        worker.is_called(0, waits=False, now=0.0)
    assert worker.rank == -1, "nor does what goes with it"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.of)
def test_a_table_has_a_row_for_every_state_and_a_use_for_every_event(table: Table[Any, Any]) -> None:
    states = type(next(iter(table.rows)))
    assert list(table.rows) == list(states)
    assert {event for _, event, _ in table.transitions()} == set(events(table))
