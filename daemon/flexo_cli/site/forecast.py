"""`flexo forecast`: forecasts the inference cluster's demand from its history, and tests the forecast.

This module has the options only. Their meaning is in `forecasting`, which the command imports when it runs.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from flexo_cli.site.forecasting.asked import (
    METHODS,
    PICTURES,
    AskedForecast,
    AskedHistory,
    AskedOutput,
    AskedTest,
)

_history = partial(typer.Option, rich_help_panel="History")
_forecast = partial(typer.Option, rich_help_panel="Forecast")
_output = partial(typer.Option, rich_help_panel="Output")

FileOption = Annotated[
    Path | None,
    _history("--history", metavar="FILE", help="A CSV file, time,servers; else flexod's event store."),
]
GenerateOption = Annotated[bool, _history("--generate", help="Generate a load: day, week, noise, bursts.")]
SeedOption = Annotated[int, _history("--seed", min=0, help="Seed of the generated load and of the LSTM.")]
DaysOption = Annotated[
    float, _history("--days", min=0.1, max=3650, help="Days of generated load.", metavar="N")
]
ServersOption = Annotated[
    int, _history("--servers", min=1, max=1_000_000, help="Servers of the generated cluster.", metavar="N")
]
DaemonOption = Annotated[
    str | None,
    _history(
        "--daemon", metavar="HOST:PORT", help="flexod's address; else $FLEXO_DAEMON, else the configuration."
    ),
]
DayOption = Annotated[
    float,
    _history(
        "--day-length",
        metavar="S",
        min=1.0,
        max=1e6,
        help="Seconds in a day, for clusters in fast motion.",
    ),
]
MethodOption = Annotated[str, _forecast("--method", metavar="seasonal|lstm", help="lstm needs PyTorch.")]
AheadOption = Annotated[
    float, _forecast("--ahead", metavar="DAYS", min=0.001, max=60.0, help="Days to forecast.")
]
QuantileOption = Annotated[
    float,
    _forecast("--quantile", metavar="Q", min=0.5, max=0.999, help="Quantile of the upper edge of the band."),
]
BacktestOption = Annotated[
    bool, _forecast("--backtest", help="Test both methods, and the last value, on the history's end.")
]
TestDaysOption = Annotated[
    float, _forecast("--test-days", metavar="N", min=0.1, max=365.0, help="Days of history for the test.")
]
PictureOption = Annotated[
    Path | None, _output("-o", "--output", metavar="FILE", help="Draw a picture: .png, .svg or .pdf.")
]
JsonOption = Annotated[bool, _output("--json", help="Print JSON with stable keys.")]


def forecast(
    history: FileOption = None,
    generate: GenerateOption = False,
    seed: SeedOption = 0,
    days: DaysOption = 28.0,
    servers: ServersOption = 100,
    daemon: DaemonOption = None,
    day_length: DayOption = 86_400.0,
    method: MethodOption = "seasonal",
    ahead: AheadOption = 1.0,
    quantile: QuantileOption = 0.95,
    backtest: BacktestOption = False,
    test_days: TestDaysOption = 7.0,
    output: PictureOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the demand of the inference cluster: history, forecast, and the band by which flexod lends."""
    if history is not None and generate:
        raise typer.BadParameter("the history is a file's or made up, not both", param_hint="--generate")
    if method not in METHODS:
        raise typer.BadParameter(f"'{method}' is none of {', '.join(METHODS)}", param_hint="--method")
    if output is not None and output.suffix.removeprefix(".").lower() not in PICTURES:
        allowed = ", ".join(f".{name}" for name in PICTURES)
        raise typer.BadParameter(f"'{output}' ends in none of {allowed}", param_hint="-o")

    from flexo_cli.site.forecasting.run import run  # numpy takes a tenth of a second to import

    run(
        AskedHistory(history, generate, seed, days, servers, daemon, day_length),
        AskedForecast(method, ahead, quantile),
        AskedTest(backtest, test_days),
        AskedOutput(output, as_json),
    )
