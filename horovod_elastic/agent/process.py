"""Runs an agent in a process: reads its command line, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import NoReturn

from flexo_protos.credentials import NotAuthentic, new_authenticator
from flexo_protos.leader_leases.lease import StoreUnavailable
from horovod_elastic import job_plan, network, open_files
from horovod_elastic.agent.agent import Agent, AgentOptions
from horovod_elastic.agent.supervisor import EXIT_CANNOT_WORK, EXIT_CRASHED, EXIT_TRY_AGAIN
from horovod_elastic.agent.supervisor_link import NoSupervisor, SupervisorLink
from horovod_elastic.platforms import registry
from horovod_elastic.platforms.base import NotInAJob
from horovod_elastic.trace import say, say_error


def end_process(run: Callable[[], int]) -> NoReturn:
    """Call `run`, and end this process at once with the code that it returns.

    Python's own exit would wait for all threads of its pools. One of those may wait for the cluster.
    """
    try:
        code = run()
    except Exception as error:
        say_error(error)
        code = EXIT_CRASHED
    os._exit(code)


def main(arguments: list[str]) -> int:
    """Entry point of `python -m horovod_elastic agent`, for `end_process`."""
    parser = argparse.ArgumentParser(prog="horovod_elastic agent")
    parser.add_argument("--slots", type=int, required=True, help="workers that fit here")
    parser.add_argument("--job", required=True, help="the job's plan (job_plan.py)")
    parser.add_argument("--base", action="store_true", help="this node belongs to the base job")
    parser.add_argument(
        "--grant", default="", help="the grant that this satellite was submitted for; empty in the base job"
    )
    parser.add_argument(
        "--again", action="store_true", help="an earlier agent of this job ran on this node and ended"
    )
    parser.add_argument(
        "--pass-signals",
        action="store_true",
        help="pass signals on to the workers, because the cluster signals the agent alone",
    )
    parser.add_argument(
        "--shared-gpus",
        type=_numbers,
        default=(),
        help="the GPUs of the workers, by slot, if other jobs hold these GPUs",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the training command")
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    agent_options = AgentOptions(
        slots=options.slots,
        base=options.base,
        grant_id=options.grant,
        again=options.again,
        pass_signals=options.pass_signals,
        command=tuple(command),
        shared_gpus=options.shared_gpus,
    )
    restarted = False
    open_files.raise_limit()
    try:
        supervisor = SupervisorLink()
        restarted = supervisor.again or agent_options.again
        plan, platform = job_plan.from_text(options.job), registry.find(os.environ)
        agent = Agent(plan, agent_options, platform, new_authenticator(), supervisor)
    except (NotAuthentic, StoreUnavailable, network.NoAddress) as error:
        # MUNGE, an address or a client library is missing. If an earlier agent could work on this node, the
        # fault may pass.
        code, why = EXIT_TRY_AGAIN if restarted else EXIT_CANNOT_WORK, str(error)
    except (NoSupervisor, ValueError, NotInAJob) as error:
        code, why = EXIT_CANNOT_WORK, str(error)
    else:
        return agent.run()
    say(f"the agent on {os.uname().nodename} cannot work: {why}")
    return code


def _numbers(text: str) -> tuple[int, ...]:
    """`"0,2"` -> (0, 2)."""
    return tuple(int(part) for part in text.split(","))
