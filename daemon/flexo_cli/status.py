"""`flexo status`: prints what flexod sees and does."""

from __future__ import annotations

from flexo_cli import flexods, job_words, loans
from flexo_cli.as_json import status_as_json
from flexo_cli.caller import restart_notice
from flexo_cli.connection import Daemon, find_address
from flexo_cli.options import DaemonOption, JsonOption
from flexo_cli.output import ago, print_json, print_pairs


def status(daemon: DaemonOption = None, as_json: JsonOption = False) -> None:
    """Show flexod's status: what it sees and does.

    Use it to find out whether flexod is well. For the jobs, use flexo jobs; to watch all of it, flexo top;
    for the labs of this host, flexo lab status.
    """
    reply = Daemon(find_address(daemon)).status()
    beside = flexods.each_of(reply.availability.hosts)
    if as_json:
        print_json(status_as_json(reply, beside))
        return
    print_pairs(
        [
            ("flexod", f"{reply.flexod_version}, up for {ago(reply.started_at)}"),
            *(("flexods", each.sentence()) for each in beside),
            ("cluster", f"{reply.cluster}, {reply.software or 'Slurm'} {reply.slurm_version}"),
            ("policy", reply.policy + (" (dry run: decides, changes nothing)" if reply.dry_run else "")),
            ("last look", job_words.last_look(reply)),
            ("GPUs", job_words.gpus(reply)),
            ("elastic jobs", f"{reply.elastic_jobs}, {reply.leaders} with a leader attached"),
            *((("loans", loans.lending_line(reply.lending)),) if reply.HasField("lending") else ()),
            *((("pool", job_words.pool(reply.pool)),) if reply.HasField("pool") else ()),
            *(("slow GPU", job_words.slow_gpu(gpu)) for gpu in reply.slow_gpus),
            *job_words.unknown_satellites(reply),
            *job_words.hidden(reply.privacy),
            ("trouble", reply.trouble or "none"),
            *((("restart", notice),) if (notice := restart_notice(reply)) else ()),
        ]
    )
