"""Carries out `flexo forecast`: reads or makes a history, forecasts, tests and prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer

from flexo.loaning import forecast
from flexo.loaning.backtest import Rival, Score, TooShort, backtest
from flexo.loaning.diurnal import BadShape
from flexo.loaning.forecast_interval import ForecastInterval, Method
from flexo.loaning.last_value import LastValue
from flexo.loaning.lstm import LstmMethod, TorchMissing
from flexo_cli.exit_codes import ExitCode
from flexo_cli.output import complain, print_json, print_line
from flexo_cli.site.forecasting import tell
from flexo_cli.site.forecasting.asked import AskedForecast, AskedHistory, AskedOutput, AskedTest
from flexo_cli.site.forecasting.history_file import BadHistory
from flexo_cli.site.forecasting.source import Past, past

LEADS_S: Final = (600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
"""Leads of the back-test, for days of 24 hours. Ten minutes is more than a reclaim takes."""
_LSTM_REFIT_DAYS: Final = 7.0


def run(history: AskedHistory, asked: AskedForecast, test: AskedTest, output: AskedOutput) -> None:
    """Carry out the command. Prints the reason of a failure and raises typer.Exit."""
    with explained():
        found = past(history)
        band = _forecast(found, asked, history.seed)
        scores = _scores(found, asked, test, history.seed) if test.wanted else ()
        if output.picture is not None:
            _draw(found, band, output.picture)
        if output.as_json:
            tested = {"backtest": tell.scores_as_json(scores)} if test.wanted else {}
            print_json({**tell.forecast_as_json(found, band), **tested})
            return
        tell.print_forecast(found, band)
        if test.wanted:
            print_line("")
            tell.print_scores(scores, test.test_days, asked.quantile)
        if output.picture is not None:
            print_line(f"picture: {output.picture}")


def _forecast(found: Past, asked: AskedForecast, seed: int) -> ForecastInterval:
    history = found.history
    begin = max(found.now, (history.last + 1) * history.seasons.step_s)
    fitted = _methods(seed)[asked.method](history, asked.quantile)
    return fitted.predict(history, begin, begin + asked.ahead_days * history.seasons.day_s)


def _methods(seed: int) -> dict[str, Method]:
    return {"seasonal": forecast.learn, "lstm": LstmMethod(seed)}


def _scores(found: Past, asked: AskedForecast, test: AskedTest, seed: int) -> tuple[Score, ...]:
    methods = _methods(seed)
    rivals = (
        Rival("last value", LastValue.learn),
        Rival("seasonal", methods["seasonal"]),
        Rival("LSTM", methods["lstm"], _LSTM_REFIT_DAYS),
    )
    day_s = found.history.seasons.day_s
    leads = [lead * day_s / 86_400.0 for lead in LEADS_S if lead < test.test_days * 86_400.0]
    return backtest(found.history, rivals, leads, test.test_days, asked.quantile)


def _draw(found: Past, band: ForecastInterval, path: Path) -> None:
    from flexo_cli.site.forecasting import picture  # matplotlib takes a second to import

    picture.write(found, band, path)


@contextmanager
def explained() -> Iterator[None]:
    """Turn an error into a message and typer.Exit with its exit code."""
    try:
        yield
    except BadHistory as error:
        for problem in error.problems:
            complain(problem)
        raise typer.Exit(ExitCode.REFUSED) from None
    except (BadShape, TooShort, TorchMissing) as error:
        complain(str(error))
        raise typer.Exit(ExitCode.REFUSED) from None
    except OSError as error:
        complain(f"{error.filename or 'output'}: {error.strerror or error}")
        raise typer.Exit(ExitCode.REFUSED) from None
    except KeyboardInterrupt:
        complain("interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
