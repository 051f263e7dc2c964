"""The errors of a lab, each with a message for people."""

from __future__ import annotations


class LabError(Exception):
    """Base class of the errors of a lab."""


class BadSpec(LabError, ValueError):
    """A name or a number that a lab cannot have; the message says what is allowed."""


class LabUnavailable(LabError):
    """This machine cannot have a lab: not root, or something is not installed."""


class UnsafeFolder(LabError):
    """Another user can change a folder of the lab; the message says which folder, and what to do."""


class LabExists(LabError):
    """A lab of that name is up."""


class LabBusy(LabError):
    """Another process is bringing the lab up or taking it down."""


class NoSuchLab(LabError):
    """No lab of that name is up."""


class LabFailed(LabError):
    """A part of the lab did not start or stop; the message ends with the last lines of the part's log."""


class LabCommandFailed(LabError):
    """A command on the lab ended with another status than 0; the message has the command's standard error."""
