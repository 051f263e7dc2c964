"""What is run on each release of Slurm, in parts that the report tells apart."""

from __future__ import annotations

from dataclasses import dataclass

_WITHOUT_TRAINING = ("-m", "not training")
_ELASTIC = "tests/slurm/matrix/test_elastic_job.py"
_CHECKS = "for lua in lua5.1 lua5.3 lua5.4; do make -C slurm_plugin check LUA=$lua || exit 1; done"
_PLUGIN = "tests/slurm/test_plugin.py"


@dataclass(frozen=True, slots=True)
class Part:
    """Tests by pytest's arguments, or a command in the checkout that ends with 0."""

    name: str
    what: str
    """For the table."""
    tests: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    pyslurm: bool = False
    """Whether pyslurm is wanted for it."""


FULL = (
    Part(
        "checks",
        "the plugin's own checks: ranges under sanitizers, the Lua module under Lua 5.1, 5.3 and 5.4",
        command=("sh", "-c", _CHECKS),
    ),
    Part("plugin", "`--elastic` accepted, refused, range errors; Lua on the controller", (_PLUGIN,)),
    Part(
        "daemon",
        "what flexod reads and changes; order of jobs; orphans; pyslurm where it is",
        (
            *("tests/slurm/test_adapter.py", "tests/slurm/test_order.py", "tests/slurm/test_flexod.py"),
            *_WITHOUT_TRAINING,
        ),
        pyslurm=True,
    ),
    Part(
        "elastic",
        "an elastic job: grants become satellites, an ordinary job takes a node back, leases",
        (_ELASTIC,),
    ),
    Part(
        "without-munge",
        "without munged: Slurm's own sack (auth/slurm) proves who calls; forged tokens are refused",
        ("tests/slurm/matrix/test_without_munge.py",),
    ),
    Part(
        "loans",
        "partitions edited, servers lent and taken back",
        ("tests/slurm/test_loans.py", *_WITHOUT_TRAINING),
    ),
    Part(
        "sharing",
        "GPUs shared: the right one opens under device cgroups, satellites are held, forged requests refused",
        (
            *("tests/slurm/test_shared_gpus.py", "tests/slurm/matrix/test_device_cgroups.py"),
            *("tests/slurm/matrix/test_spare_qos.py", "tests/slurm/test_sharing_prolog.py"),
        ),
    ),
    Part(
        "qos",
        "slurmdbd on MariaDB: preempt/qos, associations and limits, UsageFactor",
        ("tests/slurm/matrix/test_qos.py",),
    ),
)
SHORT = (
    Part(
        "short",
        "one elastic job grows and gives back; `--elastic` accepted and refused; a shared GPU opens",
        (
            "tests/slurm/matrix/test_device_cgroups.py::test_a_spare_gpu_opens_exactly_its_device_beside_"
            "the_job_that_holds_all",
            f"{_ELASTIC}::test_an_elastic_job_grows_and_an_ordinary_job_takes_a_node_back",
            f"{_PLUGIN}::test_the_options_are_recorded_in_the_admin_comment",
            f"{_PLUGIN}::test_a_maximum_over_the_sites_limit_is_refused_with_the_limit",
            f"{_PLUGIN}::test_a_job_array_is_refused",
        ),
    ),
)
"""For the newest release in every run of the tests."""
