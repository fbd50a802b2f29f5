# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The scrape jobs of Prometheus: their targets from the inventory, and their entries of `scrape_configs`."""

from __future__ import annotations

import posixpath
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence

import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import LOAD_BALANCER_HOSTS, MONITORING_HOSTS
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import netloc
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.other_hosts import address_of, parsed_ip, variable_of

# Port of the vendor's daemon on a host. If monitoring_cards_gateway is set, that gateway queries the daemons of all hosts.
DAEMON_PORT = 50051
# {option of a job that a site may set: True, or the options in it if the option is a map}. Secrets have to be in files, because
# everybody who can read the configuration of Prometheus, or open its page, can read the values of options.
JOB_OPTIONS: Mapping[str, Any] = {
    "scrape_interval": True,
    "scrape_timeout": True,
    "scheme": True,
    "follow_redirects": True,
    "sample_limit": True,
    "fallback_scrape_protocol": True,
    "relabel_configs": True,
    "metric_relabel_configs": True,
    "tls_config": dict.fromkeys(("ca_file", "cert_file", "key_file", "server_name", "insecure_skip_verify", "min_version"), True),
    "basic_auth": {"username": True, "password_file": True},
    "authorization": {"type": True, "credentials_file": True},
}
# {option with a secret: the option with its file}
SECRET_FILES = {"password": "password_file", "credentials": "credentials_file", "bearer_token": "authorization.credentials_file"}


class Job(NamedTuple):
    """A scrape job with its targets. The short name is also the name of the file with the targets."""

    name: str
    targets: List[Dict[str, Any]]

    @property
    def full_name(self) -> str:
        """Return the value of the label `job`."""
        return "npufleet-" + self.name


def jobs(variables: Mapping[str, Any]) -> List[Job]:
    """Return the jobs that have targets, and always the job `triton`."""
    all_jobs = [Job(name, list(targets(variables))) for name, targets in TARGETS.items()]
    return [job for job in all_jobs if job.targets or job.name == "triton"]


def entries(variables: Mapping[str, Any], scrape_jobs: Sequence[Job]) -> str:
    """Return the entries of `scrape_configs`, indented as in the configuration. Raises Refusal."""
    options = variables["monitoring_scrape_options"]
    reasons = list(_reasons(options))
    if len({path(variables, name) for name in TARGETS}) < len(TARGETS):
        actual = f"{path(variables, 'triton')}, the file of another job"
        reasons.append(f"monitoring_targets_file is {actual}. Give it another name, such as triton.json")
    if reasons:
        raise Refusal(reasons)
    lines: List[str] = []
    for job in scrape_jobs:
        job_options = dict(options.get(job.name) or {})
        lines += [
            f"- job_name: {job.full_name}",
            f"  scrape_interval: {job_options.pop('scrape_interval', variables['monitoring_scrape_interval'])}",
            "  file_sd_configs:",
            f"    - files: [{path(variables, job.name)}]",
        ]
        rest = yaml.safe_dump(job_options, default_flow_style=False, allow_unicode=True, width=1 << 16) if job_options else ""
        lines += ["  " + line for line in rest.splitlines()]
    margin = " " * int(variables["monitoring_scrape_indent"])
    return "\n".join(margin + line for line in lines)


def checked(files: Mapping[str, str]) -> Dict[str, str]:
    """Return {path: content} for promtool: copies of the files, and a configuration that refers to these copies."""
    directory = posixpath.join(posixpath.dirname(next(iter(files))), "check")
    copies = {posixpath.basename(file): content for file, content in files.items()}
    names = ", ".join(copies)
    config = f"scrape_configs: [{{job_name: check, file_sd_configs: [{{files: [{names}]}}]}}]\n"
    return {posixpath.join(directory, name): content for name, content in {**copies, "prometheus.yml": config}.items()}


def path(variables: Mapping[str, Any], name: str) -> str:
    """Return the path of the file with the targets of a job. All such files are in the directory of monitoring_targets_file."""
    triton_file = variables["monitoring_targets_file"]
    return triton_file if name == "triton" else posixpath.join(posixpath.dirname(triton_file), name + ".json")


def _reasons(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors of `monitoring_scrape_options`. The values of options are not shown, because they can be secret."""
    for job, job_options in options.items():
        if job not in TARGETS:
            yield f"monitoring_scrape_options has the job {job}, expected {', '.join(TARGETS)}. Correct the name"
        elif not isinstance(job_options, Mapping):
            yield f"monitoring_scrape_options.{job} is no map, expected options of a scrape job. Write it as a map"
        else:
            yield from _option_reasons(f"monitoring_scrape_options.{job}", job_options, JOB_OPTIONS)


def _option_reasons(prefix: str, job_options: Mapping[str, Any], allowed: Mapping[str, Any]) -> Iterator[str]:
    for name, value in job_options.items():
        if name in SECRET_FILES:
            file_option = SECRET_FILES[name]
            yield f"{prefix} has {name}, which everybody could read. Write the secret to a file, and set {file_option} to its path"
        elif name not in allowed:
            yield f"{prefix} has the option {name}, expected {', '.join(allowed)}. Correct the name, or use a job of your own"
        elif isinstance(allowed[name], Mapping):
            if isinstance(value, Mapping):
                yield from _option_reasons(f"{prefix}.{name}", value, allowed[name])
            else:
                yield f"{prefix}.{name} is no map, expected {', '.join(allowed[name])}. Write it as a map"


def _option(variables: Mapping[str, Any], host: str, name: str) -> Any:
    """Return an option of the role `monitoring` for a host. If the host does not set it, the monitoring host's value applies."""
    return variables["hostvars"][host].get(name, variables[name])


def _target(host: str, address: str, port: Any, **labels: str) -> Dict[str, Any]:
    return {"targets": [netloc(address, port)], "labels": {"host": host, **labels}}


def _npu_hosts(variables: Mapping[str, Any]) -> List[str]:
    return list(variables["groups"].get(variables["monitoring_scrape_group"], []))


def _balancers(variables: Mapping[str, Any]) -> List[str]:
    return list(variables["groups"].get(LOAD_BALANCER_HOSTS, []))


def _triton(variables: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    for host in _npu_hosts(variables):
        listen = parsed_ip(str(variable_of(variables, host, "triton_server_metrics_listen_address")).strip("[]"))
        metrics_address = str(listen) if listen and not listen.is_unspecified and not listen.is_loopback else ""
        # If a site has a TLS proxy in front of the metrics, monitoring_triton_port is the port of this proxy.
        port = int(_option(variables, host, "monitoring_triton_port")) or variable_of(variables, host, "npufleet_metrics_port")
        yield _target(host, metrics_address or address_of(variables, host), port)


def _node(variables: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    hosts, monitoring = variables["hostvars"], variables["groups"].get(MONITORING_HOSTS, [])
    # The node exporter of these monitoring hosts has the metrics of status.yml.
    status_hosts = [host for host in monitoring if _is_true(hosts[host].get("monitoring_status_metrics", False))]
    for host in dict.fromkeys([*_npu_hosts(variables), *_balancers(variables), *status_hosts]):
        if _is_true(_option(variables, host, "monitoring_node_exporter")):
            yield _target(host, address_of(variables, host), _option(variables, host, "monitoring_node_port"))


def _balancer(variables: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    """Yield the load balancers whose metrics the monitoring host can reach. By default, only the balancer itself can reach them."""
    for host in _balancers(variables):
        host_part, _colon, port = str(variable_of(variables, host, "load_balancer_metrics_address")).rpartition(":")
        listen = parsed_ip(host_part.strip("[]"))
        if listen is None or (listen.is_loopback and host != variables["inventory_hostname"]):
            continue
        yield _target(host, address_of(variables, host) if listen.is_unspecified else str(listen), port)


def _cards(variables: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    gateway = str(variables["monitoring_cards_gateway"])
    for host in _npu_hosts(variables):
        if _option(variables, host, "monitoring_cards") != "exporter":
            continue
        address = address_of(variables, host)
        if gateway:
            daemon = netloc(address, DAEMON_PORT)
            yield {"targets": [gateway], "labels": {"__param_target": daemon, "host": host, "instance": daemon}}
        else:
            yield _target(host, address, _option(variables, host, "monitoring_cards_port"))


TARGETS = {"triton": _triton, "node": _node, "balancer": _balancer, "cards": _cards}


def _is_true(value: Any) -> bool:
    """Return True if a variable of another host is true. The value can be a text."""
    return value is True or str(value).lower() in ("true", "yes", "on", "1")
