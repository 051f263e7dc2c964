"""Calls that are signed, and calls that are encrypted: against a real ResourceManager and NodeManager."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from applications import Application, require_yarn
from thorough import rare

from flexo_lab.yarn import Protection, YarnLab, YarnLabSpec, bring_up_yarn
from flexo_protos.hadoop.ipc_pb2 import Token
from flexo_yarn import records
from flexo_yarn.application_master import ApplicationMaster
from flexo_yarn.ipc.errors import Refused
from flexo_yarn.site_settings import FLEX_QUEUE


@pytest.fixture(params=[rare(Protection.INTEGRITY), Protection.PRIVACY])
def protected_lab(request: pytest.FixtureRequest) -> Iterator[YarnLab]:
    require_yarn()
    name = f"yarn-{request.param}-{os.getpid()}"
    lab = bring_up_yarn(YarnLabSpec(name=name, nodes=1, protection=request.param, flexod=False))
    yield lab
    lab.down()


def test_an_application_runs_where_messages_are_protected(protected_lab: YarnLab) -> None:
    application = Application.submit(protected_lab, FLEX_QUEUE)
    for number in (1, 2):  # a sequence of messages on one connection
        (container,) = application.grow(number, gpus=1)
        application.start(container, f"exit {40 + number}")
        text = records.container_text(container.id)
        status = application.wait_until("its end", lambda text=text: application.ended.get(text))
        assert status.exit_status == 40 + number
    application.end()


def test_a_token_with_a_wrong_secret_is_refused(lab: YarnLab) -> None:
    application = Application.submit(lab, FLEX_QUEUE)
    right = application.token
    wrong = Token(identifier=right.identifier, password=b"guessed", kind=right.kind, service=right.service)
    with pytest.raises(Refused):
        ApplicationMaster(lab.scheduler, wrong).register()
