"""Runs Slurm's own commands: the only place here that starts a process.

Every failure becomes ClusterUnreachable (nobody answered) or ActionRefused (Slurm answered no), with the
command as an administrator would type it and Slurm's own words.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from flexo.clusters.base import (
    ANSWERED,
    FAILED,
    SILENT,
    ActionRefused,
    CallEnded,
    ClusterUnreachable,
    MayAct,
    MayNotAct,
    always,
    nobody_counts,
)

# Variables of a caller's shell would change what Slurm's commands print (SQUEUE_STATES,
# SLURM_CLUSTERS, ...). So flexod removes them, except those that name the cluster or prove the caller.
_FOREIGN_PREFIXES = ("SLURM_", "SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_", "SDIAG_", "SBATCH_")
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})

# Slurm has no exit status for "nobody answered": these are its words for it (slurm_errno.c).
_UNREACHABLE_WORDS = (
    "unable to contact slurm controller",
    "unable to establish controller",
    "could not establish a configuration source",
    "connection refused",
    "connection timed out",
    "connection reset",
    "not connected",
    "socket timed out",
    "zero bytes were transmitted or received",
    "communication connection failure",
    "communication receive failure",
    "communication send failure",
    "message receive failure",
    "message send failure",
    "insane message length",
    "standby mode",
    "authentication",
    "resource temporarily unavailable",
)

_ASKED_EVERY_S: Final = 0.1
"""The interval at which a running command is checked: it is killed when flexod may not act any more."""

_JOB: Final = re.compile(r"\bfor job (\d+)$")


def nobody_waits() -> None:
    """The `answered` callback that does nothing."""


class CommandFailed(Exception):
    """A command ended with an error. `said`: the command's own words. The message holds the command, too."""

    def __init__(self, replay: str, lines: Sequence[str]) -> None:
        self.replay = replay
        self.lines = lines
        """The command's words, line by line."""
        self.said = " ".join(lines)
        super().__init__(f"`{replay}` failed: {self.said}")


class SlurmCommands:
    """Slurm's commands, pointed at one cluster and bounded in time."""

    def __init__(
        self,
        slurm_conf: Path | None,
        timeout_s: float,
        ended: CallEnded = nobody_counts,
        may_act: MayAct = always,
    ) -> None:
        """`slurm_conf` None: the environment and Slurm's default decide. `ended`: told of each command."""
        self._ended = ended
        self._may_act = may_act
        self._slurm_conf = slurm_conf
        self._timeout_s = timeout_s

    def read(
        self,
        *argv: str,
        variables: Mapping[str, str] | None = None,
        answered: Callable[[], None] = nobody_waits,
    ) -> str:
        """The output of a command that changes nothing. Raises ClusterUnreachable for every failure.

        `answered` is called once Slurm has answered the command, which then still has to print the answer.
        """
        try:
            return self.run(argv, variables or {}, answered=answered)
        except CommandFailed as failure:
            raise ClusterUnreachable(str(failure)) from failure

    def act(self, *argv: str, lines: str = "", harmless: Sequence[str] = ()) -> str:
        """Run a command that Slurm may refuse. Raises ActionRefused when it does.

        `lines`: text for the standard input. `harmless`: words, in small letters; an answer of Slurm with one
        of them is no refusal. After ClusterUnreachable the command may still be carried out: slurmctld
        answers late what it received in time. Raises MayNotAct if another flexod acts instead.
        """
        self._may_act()
        try:
            return self.run(argv, {}, lines)
        except CommandFailed as failure:
            serious = [line for line in failure.lines if not _says(line, harmless)]
            if not serious:
                return ""
            if _says(failure.said, _UNREACHABLE_WORDS):
                raise ClusterUnreachable(str(failure)) from failure
            raise ActionRefused(str(CommandFailed(failure.replay, serious)), _jobs_in(serious)) from failure

    def run(
        self,
        argv: Sequence[str],
        variables: Mapping[str, str],
        lines: str = "",
        answered: Callable[[], None] = nobody_waits,
    ) -> str:
        """Run one command. Raises CommandFailed if it ends with an error, ClusterUnreachable if it gives no
        answer.

        `variables`: set in the environment of this command alone. `lines`: text for the standard input.
        `answered` is called once, when the first output is there or the command has ended well without any.
        """
        begun, outcome = time.monotonic(), SILENT
        try:
            said = self._run(argv, variables, lines, answered)
            outcome = ANSWERED
            return said
        except CommandFailed:
            outcome = FAILED
            raise
        finally:
            self._ended(_kind(argv), outcome, time.monotonic() - begun)

    def _run(
        self,
        argv: Sequence[str],
        variables: Mapping[str, str],
        lines: str,
        answered: Callable[[], None],
    ) -> str:
        replay = self._replay(argv)
        try:
            done = self._done(argv, variables, lines, answered)
        except subprocess.TimeoutExpired as late:
            raise ClusterUnreachable(f"`{replay}` did not answer within {self._timeout_s:g} s") from late
        except OSError as missing:
            raise ClusterUnreachable(f"`{replay}` could not be started: {missing.strerror}") from missing
        # Users write some of these bytes (job comments), in whatever encoding they like.
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout[:500]).decode("utf-8", "replace").splitlines()
            words = [" ".join(line.split()) for line in said if line.strip()]
            raise CommandFailed(replay, words or [f"exit status {done.returncode}, no words"])
        return done.stdout.decode("utf-8", "replace")

    def _done(
        self,
        argv: Sequence[str],
        variables: Mapping[str, str],
        lines: str,
        answered: Callable[[], None],
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the process to its end. Raises TimeoutExpired and MayNotAct, after killing it, and OSError."""
        until, go_on = time.monotonic() + self._timeout_s, self._while_it_may_act()
        pipe = subprocess.PIPE
        with subprocess.Popen(
            list(argv), env=self._environment(variables), stdin=pipe, stdout=pipe, stderr=pipe
        ) as process:
            try:
                prints = answered is not nobody_waits and _prints_by(until, process, go_on)
                if prints:
                    answered()
                said, words = _communicate(process, lines.encode(), until, go_on)
            except BaseException:
                process.kill()
                raise
        if not prints and not process.returncode:
            answered()
        return subprocess.CompletedProcess(process.args, process.returncode, said, words)

    def _while_it_may_act(self) -> MayAct:
        """The check to make while a command runs. A flexod without the right to act at its beginning only
        reads, and needs no check."""
        try:
            self._may_act()
        except MayNotAct:
            return always
        return self._may_act

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in _KEPT or not name.startswith(_FOREIGN_PREFIXES)
        }
        return kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"} | self._pointed_at() | dict(variables)

    def _pointed_at(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self._slurm_conf)} if self._slurm_conf else {}

    def _replay(self, argv: Sequence[str]) -> str:
        pointed_at = [f"{name}={shlex.quote(value)}" for name, value in self._pointed_at().items()]
        return " ".join([*pointed_at, shlex.join(argv)])


def _prints_by(until: float, process: subprocess.Popen[bytes], go_on: MayAct) -> bool:
    """Whether the process has printed something by `until`, and has not just closed its output."""
    assert process.stdout is not None
    output = select.poll()  # select handles 1,024 files only, and each leader is one
    output.register(process.stdout, select.POLLIN)
    while True:
        left_s = max(0.0, until - time.monotonic())
        found = output.poll(min(left_s, _ASKED_EVERY_S) * 1000)
        if found or not left_s:
            return any(event & select.POLLIN for _, event in found)
        go_on()


def _communicate(
    process: subprocess.Popen[bytes], lines: bytes, until: float, go_on: MayAct
) -> tuple[bytes, bytes]:
    """The output of the process. Raises TimeoutExpired, and MayNotAct when another flexod acts instead."""
    told: bytes | None = lines
    while True:
        left_s = max(0.0, until - time.monotonic())
        try:
            return process.communicate(told, min(left_s, _ASKED_EVERY_S))
        except subprocess.TimeoutExpired:
            if not left_s:
                raise
        go_on()
        told = None  # later calls go on with the first input


def _kind(argv: Sequence[str]) -> str:
    """The name of a command without its arguments: ``squeue``, ``scontrol show node``."""
    name = Path(argv[0]).name
    if name != "scontrol":
        return name
    plain = [word for word in argv[1:] if word.isalpha() and word.islower()]
    return " ".join([name, *plain[:2]])


def _jobs_in(lines: Sequence[str]) -> frozenset[str]:
    """The jobs that scontrol's words name: scontrol goes on after a job that it may not change."""
    found = (_JOB.search(line) for line in lines)
    return frozenset(match[1] for match in found if match)


def _says(text: str, words: Sequence[str]) -> bool:
    return any(each in text.lower() for each in words)
