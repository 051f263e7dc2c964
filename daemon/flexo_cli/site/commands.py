"""Adds the commands for sites to `flexo`: the doctor, planning, and labs."""

from __future__ import annotations

from functools import partial

import typer

from flexo_cli.help_pages import Section
from flexo_cli.site import doctor, forecast, lab, simulate, whatif, yarn_doctor


def add_to(app: typer.Typer, yarn: typer.Typer) -> None:
    """Add the commands to `app`, and that of YARN clusters to `yarn`."""
    app.command(rich_help_panel=Section.ADMINISTRATION)(doctor.doctor)
    yarn.command()(yarn_doctor.doctor)
    planning = partial(app.command, rich_help_panel=Section.PLANNING)
    planning(cls=simulate.JsonCommand)(whatif.whatif)
    planning(cls=simulate.JsonCommand)(simulate.simulate)
    planning()(forecast.forecast)
    app.add_typer(lab.app, name="lab", rich_help_panel=Section.LAB)
