"""Files of a job for its containers: what YARN's NodeManagers fetch into each container's folder."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from flexo_protos.hadoop import yarn_pb2 as pb
from horovod_elastic.platforms.base import Refused

ARCHIVES: Final = (".tar.gz", ".tgz", ".tar", ".zip")
"""Endings of the archives that NodeManagers unpack."""
HADOOP_WITHIN_S: Final = 600.0
"""Longest time for one command of Hadoop: it may upload gigabytes."""
STAGING: Final = ".flexo"
"""The folder of uploads, in the user's folder of the cluster's filesystem."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """A file for all containers. `name`: its name there, or the folder's that an archive is unpacked into."""

    source: str
    """A path of this host, or a URI of a filesystem that all nodes reach."""
    name: str
    archive: bool = False


class Files:
    """Makes files known to YARN. Where the cluster has its own filesystem, `hadoop fs` uploads them."""

    def __init__(self, default_filesystem: str, folder: str, *, secure: bool = False) -> None:
        """`folder`: the name of this job's own folder of uploads. `secure`: there is Kerberos."""
        self._secure = secure
        self._default = default_filesystem.rstrip("/")
        self._folder = f"{STAGING}/{folder}"

    def resource(self, file: Shipped) -> pb.NamedLocalResource:
        """What a container's launch says of a file. Raises Refused."""
        scheme = urlsplit(file.source).scheme
        own = not scheme and urlsplit(self._default).scheme not in ("", "file")
        if self._secure and (own or scheme not in ("", "file")):
            raise Refused(
                f"{file.source} would come from {self._default if own else scheme}, and NodeManagers of a "
                "cluster with Kerberos need a token for that, which flexo does not get; allowed there: "
                "file:///PATH of a filesystem that all nodes have"
            )
        if own:
            return self._of_uri(file, self._uploaded(file))
        if scheme in ("", "file"):
            return self._of_path(file, Path(urlsplit(file.source).path if scheme else file.source))
        return self._of_uri(file, file.source)

    def _of_path(self, file: Shipped, path: Path) -> pb.NamedLocalResource:
        path = path.absolute()
        try:
            stat = path.stat()
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from error
        if not path.is_file():
            raise Refused(f"{path} is no file; NodeManagers fetch files and archives")
        url = pb.Url(scheme="file", file=str(path))
        return _named(file, url, stat.st_size, stat.st_mtime_ns // 1_000_000)

    def _of_uri(self, file: Shipped, uri: str) -> pb.NamedLocalResource:
        parts = urlsplit(uri if urlsplit(uri).scheme else f"{self._default}{self._in_home(uri)}")
        said = _hadoop(["-stat", "%Y %b", uri]).split()
        if len(said) != 2 or not all(map(str.isdecimal, said)):
            raise Refused(f"`hadoop fs -stat` says of {uri}: {' '.join(said)}")
        url = pb.Url(scheme=parts.scheme, host=parts.hostname or "", port=parts.port or -1, file=parts.path)
        return _named(file, url, int(said[1]), int(said[0]))

    @staticmethod
    def _in_home(path: str) -> str:
        return path if path.startswith("/") else f"/user/{getpass.getuser()}/{path}"

    def _uploaded(self, file: Shipped) -> str:
        path = Path(file.source)
        if not path.is_file():
            raise Refused(f"{path} is no file; NodeManagers fetch files and archives")
        folder = (
            f"{self._folder}/{file.name}"  # the path's own name, by which YARN unpacks it, may be another's
        )
        _hadoop(["-mkdir", "-p", folder])
        _hadoop(["-put", str(path), f"{folder}/{path.name}"])
        return _hadoop(["-ls", "-C", f"{folder}/{path.name}"])


def _named(file: Shipped, url: pb.Url, size: int, timestamp: int) -> pb.NamedLocalResource:
    return pb.NamedLocalResource(
        key=file.name,
        value=pb.LocalResource(
            resource=url,
            size=size,
            timestamp=timestamp,
            type=pb.ARCHIVE if file.archive else pb.FILE,
            visibility=pb.APPLICATION,
        ),
    )


def _hadoop(arguments: Sequence[str]) -> str:
    if (program := shutil.which("hadoop")) is None:
        raise Refused("files on the cluster's own filesystem need the command hadoop, which is not on PATH")
    command = [program, "fs", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HADOOP_WITHIN_S, check=True)
    except subprocess.CalledProcessError as error:
        raise Refused(f"`{' '.join(command)}`: {error.stderr.strip()}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"`{' '.join(command)}`: {error}") from error
    return done.stdout.strip()
