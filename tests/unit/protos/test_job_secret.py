"""A job's own secret as its credential: who has it, for which call, once, and to flexod over TLS only."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flexo_protos import job_secret, tls
from flexo_protos.credentials import JOB_SECRET, SCHEME_VARIABLE, Munge, NotAuthentic, new_authenticator
from flexo_protos.job_secret import JobSecret, fingerprint, fingerprint_of, for_flexod

SECRET = bytes(range(32))
METHOD = "/flexo.v1.Service/Method"


def test_who_has_the_secret_is_believed_once_and_for_the_method_that_was_meant() -> None:
    here, there = JobSecret(SECRET), JobSecret(SECRET)
    credential = there.credential(METHOD)
    with pytest.raises(NotAuthentic, match=METHOD + "x"):
        here.verify(credential, METHOD + "x")
    here.verify(credential, METHOD)
    with pytest.raises(NotAuthentic):
        here.verify(credential, METHOD)


@pytest.mark.parametrize("credential", ["", "x", "1 2 3", "secret " + SECRET.hex()])
def test_what_is_no_credential_is_refused(credential: str) -> None:
    with pytest.raises(NotAuthentic):
        JobSecret(SECRET).verify(credential, METHOD)


def test_another_jobs_credential_is_refused() -> None:
    with pytest.raises(NotAuthentic):
        JobSecret(SECRET).verify(JobSecret(bytes(32)).credential(METHOD), METHOD)


@pytest.mark.parametrize("later_s", [-120, 120])
def test_a_credential_of_another_time_is_refused(monkeypatch: pytest.MonkeyPatch, later_s: float) -> None:
    secret, now = JobSecret(SECRET), time.time()
    credential = secret.credential(METHOD)
    monkeypatch.setattr(time, "time", lambda: now + later_s)
    with pytest.raises(NotAuthentic):
        secret.verify(credential, METHOD)


def test_used_credentials_are_forgotten_when_they_have_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    secret, now = JobSecret(SECRET), time.time()
    for minute in range(5):
        monkeypatch.setattr(time, "time", lambda minute=minute: now + 120 * minute)
        for _ in range(10):
            secret.verify(secret.credential(METHOD), METHOD)
        assert len(secret._used) <= 20


def test_flexod_is_shown_a_secret_whose_fingerprint_the_cluster_lists() -> None:
    shown = for_flexod(JobSecret(SECRET), ["127.0.0.1:6836"])
    assert fingerprint_of(shown.credential(METHOD)) == fingerprint(SECRET)
    with pytest.raises(NotAuthentic):
        shown.verify(shown.credential(METHOD), METHOD)


@pytest.mark.parametrize("credential", ["", "secret", "secret abc", "secret " + "g" * 64, SECRET.hex()])
def test_what_shows_no_secret_has_no_fingerprint(credential: str) -> None:
    with pytest.raises(NotAuthentic):
        fingerprint_of(credential)


@pytest.mark.parametrize("host", ["ctl1:6836", "10.0.0.1:6836", "127.0.0.1.example.org:6836"])
def test_a_secret_travels_between_hosts_over_tls_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str
) -> None:
    monkeypatch.setenv(tls.VARIABLE, "")
    with pytest.raises(NotAuthentic, match="TLS"):
        for_flexod(JobSecret(SECRET), ["localhost:1", host])
    monkeypatch.setenv(tls.VARIABLE, str(tmp_path / "ca.pem"))
    assert for_flexod(JobSecret(SECRET), [host]).credential(METHOD)


def test_other_schemes_stay_what_they_are() -> None:
    munge = Munge()
    assert for_flexod(munge, ["ctl1:6836"]) is munge


def test_the_scheme_and_the_secret_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    monkeypatch.setenv(SCHEME_VARIABLE, JOB_SECRET)
    monkeypatch.setenv(job_secret.FILE_VARIABLE, str(file))
    for content in (None, "xyz", "00"):
        if content is not None:
            file.write_text(content)
        with pytest.raises(NotAuthentic):
            new_authenticator()
    file.write_text(SECRET.hex() + "\n")
    JobSecret(SECRET).verify(new_authenticator().credential(METHOD), METHOD)
