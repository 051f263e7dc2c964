"""One file, checked on start: every mistake names its key, its line and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from says import says

from flexo.config import ConfigError, Settings, load, parse

SAMPLE = Path(__file__).parents[2] / "daemon" / "flexo" / "flexo.toml.example"


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "flexo.toml")
    return caught.value.problems


def test_an_empty_file_gives_every_default():
    assert parse("", "flexo.toml") == Settings()


def test_values_come_out_typed():
    settings = parse(
        """
        [service]
        administrators = ["ada", "bob"]
        munge_socket = "/run/lab/munge.socket"
        [slurm]
        conf = "/etc/slurm/slurm.conf"
        [controller]
        min_interval_s = 1
        start_within_s = 40
        """,
        "flexo.toml",
    )
    assert settings.service.administrators == ("ada", "bob")
    assert settings.service.munge_socket == Path("/run/lab/munge.socket")
    assert settings.slurm.conf == Path("/etc/slurm/slurm.conf")
    assert settings.controller.min_interval_s == 1.0
    assert settings.controller.start_within_s == 40


def test_settings_cannot_be_changed_afterwards():
    with pytest.raises(ValueError, match="frozen"):
        Settings().controller.dry_run = True  # type: ignore[misc]


def test_names_of_the_first_release_mean_what_they_meant_and_are_told():
    old = parse('[journal]\nkeep_days = 7\n[controller]\nlease_s = 90\norder = "slurm"\n', "flexo.toml")
    told = (old.event_store.keep_days, old.controller.time_limit_s, old.controller.order)
    assert told == (7, 90, "cluster")
    assert says(old.renamed[0], "flexo.toml", "[journal]", "[event_store]", "0.3")
    assert says(old.renamed[1], "[controller] lease_s", "time_limit_s", "0.3")
    assert says(old.renamed[2], "[controller] order", '"slurm"', '"cluster"', "0.3")
    assert parse("[event_store]\nkeep_days = 7\n", "flexo.toml").renamed == ()


def test_a_mistake_under_an_old_name_is_found_at_its_line():
    first, second = problems("# a comment\n[journal]\nkeep_days = 0\n[controller]\nlease_s = 3\n")
    assert first.startswith("flexo.toml:3: [event_store] keep_days = 0")
    assert second.startswith("flexo.toml:5: [controller] time_limit_s = 3")


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("[journal]\nkeep_days = 7\n[event_store]\nkeep_days = 8\n", "[journal]", "[event_store]"),
        ("[controller]\nlease_s = 90\ntime_limit_s = 80\n", "lease_s", "time_limit_s"),
    ],
)
def test_what_is_there_under_both_its_names_is_refused(text: str, old: str, new: str):
    (problem,) = problems(text)
    assert says(problem, "flexo.toml", old, new)


def test_a_mistyped_key_is_named_with_its_line_and_the_nearest_that_exists():
    (problem,) = problems('[service]\naddress = "ctl1:6836"\n\n[controller]\nmin_intervall_s = 2\n')
    assert problem.startswith("flexo.toml:5: [controller] min_intervall_s ")
    assert says(problem, "min_interval_s", "time_limit_s")


def test_a_mistyped_section_is_named_with_its_line_and_the_nearest_that_exists():
    (problem,) = problems("# a comment\n[contoller]\ndry_run = true\n")
    assert problem.startswith("flexo.toml:2: [contoller] ")
    assert says(problem, "controller")


@pytest.mark.parametrize(
    ("section", "line", "allowed"),
    [
        ("service", 'address = "ctl1"', '"host:port"'),
        ("service", 'address = "ctl1:70000"', "1 to 65535"),
        ("service", "address = 6836", '"host:port"'),
        ("service", 'administrators = "ada"', "a list of user names"),
        ("service", "administrators = [1]", "a list of user names"),
        ("service", 'web_steering = "flexo-web"', "a list of accounts"),
        ("service", 'web_steering = ["flexo-web", "root"]', "never root"),
        ("service", 'munge_socket = "munge.socket"', "absolute path"),
        ("slurm", 'satellite_partition = "flex,train"', "one partition"),
        ("slurm", "timeout_s = 0", "from 1 to 600"),
        ("controller", 'policy = "lira"', "one of greedy, fifo"),
        ("controller", 'min_interval_s = "2"', "seconds, from 0.2"),
        ("controller", "min_interval_s = true", "seconds, from 0.2"),
        ("controller", "min_interval_s = nan", "seconds, from 0.2"),
        ("controller", "max_interval_s = 1.0", "not below min_interval_s"),
        ("controller", "max_read_share = 2", "at most 1"),
        ("controller", "min_resize_interval_s = -1", "from 0"),
        ("controller", "time_limit_s = 30", "from 60"),
        ("controller", "time_limit_s = 90.5", "whole seconds"),
        ("controller", "start_within_s = 1", "from 5"),
        ("controller", "dry_run = 1", "true or false"),
        ("controller", 'all_reduce = "all_reduce.json"', "absolute path"),
        ("controller", 'order = "fifo"', '"cluster", or "policy"'),
        ("controller", "fairshare_weight = 1.5", "from 0 to 1"),
        ("controller", "fairshare_weight = -1", "from 0 to 1"),
        ("controller", 'quotas = ["research=64"]', "a table of Slurm accounts and their GPUs"),
        ("controller", 'quotas = { research = "64" }', "a table of Slurm accounts and their GPUs"),
        ("controller", "quotas = { research = -1 }", "a table of Slurm accounts and their GPUs"),
        ("controller", "quotas = { research = 64 }", "only with a policy that goes by quotas: antman"),
        ("controller", "gpu_speeds = { t4 = 0.0 }", "numbers from 0.001 to 1000"),
        ("controller", "gpu_speeds = { t4 = nan }", "numbers from 0.001 to 1000"),
        ("controller", "gpu_speeds = { t4 = 1e9 }", "numbers from 0.001 to 1000"),
        ("controller", 'gpu_speeds = { t4 = "slow" }', "a table of GPU types and numbers"),
        ("controller", "gpu_speeds = { t4 = 0.3, T4 = 0.4 }", "each type once"),
        ("loaning", 'partition = ""', "the name of one partition"),
        ("loaning", 'satellite_partition = "a,b"', "the name of one partition"),
        ("loaning", 'edit_command = "sudo x"', "a list of words"),
        ("loaning", "most_servers = -1", "from 0"),
        ("loaning", "most_servers = 1.5", "whole servers"),
        ("loaning", "reclaim_s = 5", "from 30"),
        ("loaning", "preempt_within_s = 181", "at most reclaim_s"),
        ("loaning", "save_within_s = 121", "with preempt_within_s at most reclaim_s"),
        ("loaning", "force_within_s = 61", "at most preempt_within_s"),
        ("loaning", 'checkpoint = "/scratch/%u.pt"', "with %j in it"),
        ("sharing", 'partition = "a,b"', "the name of one partition"),
        ("sharing", "across_accounts = 1", "true or false"),
        ("sharing", "wait_s = -1", "from 0"),
        ("loaning", 'checkpoint = "flexo-%j.pt"', "an absolute path"),
        ("loaning", 'checkpoint = "/scratch/%x-%j.pt"', "maybe %u"),
        ("loaning", 'source = "pushed"', '"partition", "prometheus" or "push"'),
        ("loaning", 'prometheus_url = "metrics:9090"', "the address of a Prometheus server"),
        ("loaning", 'prometheus_url = "http://me:word@metrics"', "without a password"),
        ("loaning", "servers_per_unit = 0", "above 0"),
        ("loaning", 'inference_users = "triton"', "a list of user names"),
        ("loaning", 'forecast = "prophet"', '"seasonal", "lstm" or "none"'),
        ("notices", 'kinds = ["grow", "extend"]', '"grow", "shrink", "lost" and "end"'),
        ("notices", 'webhook = "http://chat.example.org/hook"', "with https"),
        ("notices", 'webhook = "https://me:word@chat.example.org/"', "with https"),
        ("notices", "webhook_every_s = 0", "from 0.1"),
        ("notices", 'mail_server = "mail.example.org"', '"host:port"'),
        ("notices", 'mail_tls = "none"', "with a mail_server on this host"),
        ("notices", 'mail_from = "flexod"', "one address"),
        ("notices", 'mail_to = "ada@example.org"', "a list of addresses"),
        ("notices", 'mail_to = ["ada@example.org\\nBcc: eve@example.org"]', "a list of addresses"),
        ("notices", 'authorities = "ca.pem"', "absolute path"),
        ("event_store", 'path = "journal.sqlite"', "absolute path"),
        ("event_store", 'path = ""', "absolute path"),
        ("event_store", "keep_days = 0", "above 0"),
    ],
)
def test_a_wrong_value_is_named_with_its_line_and_what_is_allowed(section, line, allowed):
    (problem,) = problems(f"[{section}]\n\n{line}\n")
    key = line.partition(" ")[0]
    assert problem.startswith(f"flexo.toml:3: [{section}] {key}")
    assert allowed in problem


@pytest.mark.parametrize(
    "quotas", ["quotas = { research = 64, teaching = 0 }", "[controller.quotas]\nresearch = 64\nteaching = 0"]
)
def test_quotas_are_a_table_of_accounts(quotas):
    settings = parse(f'[controller]\npolicy = "antman"\n{quotas}\n', "flexo.toml")
    assert settings.controller.quotas == {"research": 64, "teaching": 0}


def test_gpu_speeds_are_a_table_of_types():
    assert parse("", "flexo.toml").controller.gpu_speeds == {"T4": 1 / 3}
    settings = parse("[controller]\ngpu_speeds = { t4 = 0.25, A100 = 2 }\n", "flexo.toml")
    assert settings.controller.gpu_speeds == {"t4": 0.25, "A100": 2.0}


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ('order = "policy"', "a policy that has an order: srtf, tiresias"),
        ("fairshare_weight = 0.5", "a policy that weighs users: lyra, goodput"),
    ],
)
def test_what_the_policy_cannot_do_is_not_allowed(line, allowed):
    (problem,) = problems(f'[controller]\npolicy = "greedy"\n{line}\n')
    assert problem.startswith(f"flexo.toml:3: [controller] {line}")
    assert allowed in problem
    parse(f'[controller]\npolicy = "lyra"\n{line}\n', "flexo.toml")


def test_a_prometheus_source_needs_an_address_and_a_query():
    (problem,) = problems('[loaning]\nsource = "prometheus"\nprometheus_url = "http://metrics:9090"\n')
    assert "prometheus_query" in problem
    (problem,) = problems('[loaning]\nsource = "prometheus"\nprometheus_query = "up"\n')
    assert "and prometheus_url beside it" in problem
    both = 'prometheus_url = "http://metrics:9090/prom"\nprometheus_query = "up"\n'
    assert parse(f'[loaning]\nsource = "prometheus"\n{both}', "flexo.toml").loaning.prometheus_query == "up"


def test_a_keytab_and_its_principal_go_together():
    (problem,) = problems('[yarn]\nkeytab = "/etc/flexo.keytab"\n')
    assert "[yarn] principal" in problem
    (problem,) = problems('[yarn]\nprincipal = "flexo@EXAMPLE.COM"\n')
    assert problem.startswith("flexo.toml:2: [yarn] principal")
    assert "keytab" in problem
    both = 'keytab = "/etc/flexo.keytab"\nprincipal = "flexo@EXAMPLE.COM"\n'
    assert parse(f"[yarn]\n{both}", "flexo.toml").yarn.principal == "flexo@EXAMPLE.COM"


def test_a_reclaim_too_short_for_its_steps_is_pointed_at_the_section():
    (problem,) = problems("[loaning]\nreclaim_s = 90\n")
    assert problem.startswith("flexo.toml:1: [loaning] save_within_s = 60.0 ")


def test_all_mistakes_are_named_at_once_in_the_order_of_the_file():
    found = problems(
        "[controller]\nlease_s = 1\nnonsense = 2\n[event_store]\nkeep_days = -1\n[service]\nport = 1\n"
    )
    assert [problem.split(":")[1] for problem in found] == ["2", "3", "5", "7"]


def test_a_default_that_clashes_with_a_value_is_pointed_at_the_section():
    found = problems("\n[controller]\nmin_interval_s = 100\n")
    assert {problem.split(":")[1] for problem in found} == {"2"}
    assert any("max_interval_s = 30.0" in problem for problem in found)


def test_what_is_not_toml_is_named_with_its_line():
    (problem,) = problems("[service]\naddress = \n")
    assert problem.startswith("flexo.toml:2: not TOML")


def test_a_section_that_is_no_table_is_said_to_be_one():
    (problem,) = problems("controller = 3\n")
    assert problem.startswith("flexo.toml:1: controller ")
    assert "[controller]" in problem


def test_lines_are_found_for_dotted_keys_and_past_strings_of_several_lines():
    text = 'event_store.keep_days = -1\n[service]\naddress = """\n[controller]\nlease_s = 1\n"""\n'
    found = problems(text)
    assert [problem.split(" ")[:3] for problem in found] == [
        ["flexo.toml:1:", "[event_store]", "keep_days"],
        ["flexo.toml:3:", "[service]", "address"],
    ]


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"/nowhere/flexo\.toml: cannot be read"):
        load(Path("/nowhere/flexo.toml"))


def test_the_sample_file_holds_every_key_with_its_default():
    text = SAMPLE.read_text()
    uncommented = "\n".join(line.removeprefix("#: ") for line in text.splitlines())
    settings = parse(text, "flexo.toml.example")
    assert settings == Settings()
    for section, field in Settings.model_fields.items():
        for key in field.annotation.model_fields:
            assert f"\n{key} = " in uncommented.split(f"[{section}]")[1], key
    parse(uncommented, "flexo.toml.example")


def test_several_flexods_need_their_hosts_and_one_place_for_their_lease():
    def of(*lines: str):
        return parse("\n".join(["[high_availability]", *lines]), "t").high_availability

    hosts = 'hosts = ["a:1", "[::1]:2"]'
    assert of(hosts, 'lease = "file:///shared/flexo"').folder == Path("/shared/flexo")
    assert of(hosts, 'lease = "etcds://e1:2379,e2:2379/flexo"').folder is None
    assert of().hosts == ()
    for lines, key in (
        ((hosts,), "lease"),
        (('lease = "file:///shared"',), "lease"),
        ((hosts, 'lease = "file://shared"'), "lease"),
        ((hosts, 'lease = "flexod"'), "lease"),
        (('hosts = ["a:1"]',), "hosts"),
        (('hosts = ["a:1", "a:1"]', 'lease = "file:///shared"'), "hosts"),
        (('hosts = ["a:1", "b"]', 'lease = "file:///shared"'), "hosts"),
        ((hosts, 'lease = "file:///shared"', "lease_s = 1"), "lease_s"),
    ):
        with pytest.raises(ConfigError, match=rf"\[high_availability\] {key} "):
            of(*lines)
