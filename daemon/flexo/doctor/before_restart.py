"""Examines a slurm.conf before slurmctld is started with it: its text, and whether Slurm itself reads it."""

from __future__ import annotations

from pathlib import Path

from flexo.config import Settings
from flexo.doctor.finding import Finding, not_checked, ok, problem
from flexo.doctor.flexod import check_config, read_settings
from flexo.doctor.memory import check_memory
from flexo.doctor.neighbours import check_neighbours
from flexo.doctor.partitions import Satellites, check_borrowed, check_partitions, check_shared, of_satellites
from flexo.doctor.plugin import check_lua_is_called
from flexo.doctor.preemption import check_preemption
from flexo.doctor.priorities import check_priorities
from flexo.doctor.scheduler import check_backfill
from flexo.doctor.slurm import check_settings
from flexo.doctor.slurm_conf import BadSlurmConf, SlurmConf, UnreadableSlurmConf, read_slurm_conf
from flexo.doctor.slurm_reads import check_reading
from flexo.doctor.slurm_starts import check_gpus, check_start
from flexo.doctor.submission import check_access


def examine_slurm_conf(path: Path, config_path: Path) -> list[Finding]:
    """Examine slurm.conf at `path` and what it includes, in the order of a report. Asks no daemon.

    `config_path`: flexod's configuration, which names the partitions; the default names where there is none.
    """
    findings, settings = _configured(config_path)
    try:
        slurm = read_slurm_conf(path)
    except UnreadableSlurmConf as error:
        return [*findings, problem("slurm.file", str(error), "Check the path, and that you may read it.")]
    except BadSlurmConf as error:
        return [*findings, problem("slurm.file", str(error), "Correct it; slurm.conf(5) has the form.")]
    return [
        *findings,
        ok("slurm.file", f"{path} can be read, with {len(slurm.partitions)} partitions"),
        check_reading(path, slurm.lines),
        *check_start(slurm),
        *_judged(slurm, settings),
        not_checked(
            "slurm",
            "whether slurmctld finds the plugins, files and hosts that the file names; release, flexo's"
            " plugin, QOS, cgroups, rights and clocks: a file does not tell",
            "After the restart: `flexo doctor`.",
        ),
    ]


def _configured(path: Path) -> tuple[list[Finding], Settings]:
    """flexod's configuration, and what is wrong with it. It may not be there yet."""
    if not path.exists():
        said = f"there is no {path}: partitions have to have the default names"
        return [not_checked("flexod.config", said, "--config names another file.")], Settings()
    settings, mistakes = read_settings(path)
    return check_config(path, mistakes, settings.renamed), settings


def _judged(slurm: SlurmConf, settings: Settings) -> list[Finding]:
    config, partitions, names = slurm.config, slurm.partitions, settings.slurm
    # the partition of satellites on shared GPUs is below the others, and has checks of its own
    ordinary = tuple(each for each in partitions if each.name != settings.sharing.partition)
    satellites = Satellites(names.satellite_partition, settings.controller.time_limit_s)
    sharing, others = settings.sharing, of_satellites(settings)
    shared = check_shared(config, partitions, sharing, others) if sharing.enabled else []
    return [
        *check_settings(config),
        *check_memory(config, partitions),
        *check_preemption(config),
        *check_partitions(config, ordinary, satellites),
        *check_borrowed(config, partitions, settings.loaning),
        *shared,
        *check_gpus(slurm, names.satellite_partition),
        *check_neighbours(config, partitions, names.satellite_partition),
        *check_access(partitions, names.satellite_partition),
        *check_priorities(config, settings.controller),
        *filter(None, [check_backfill(config), check_lua_is_called(config)]),
    ]
