# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired load balancer: haproxy.cfg with the hosts of its pool as servers, certificates, and the drop-in of its unit."""

from __future__ import annotations

import ipaddress
import os
from datetime import datetime, timezone
from typing import Any, Dict, Iterator, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.balancer import files
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import NAME
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.balancer import content_digest, shown_lines
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.programs import library
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import balancer_config, balancer_tls
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.other_hosts import address_of, parsed_ip, variable_of

# systemd saves the state of the servers before HAProxy loads its configuration or stops. With `-`, systemd ignores a failed save.
DROP_IN = """# Written by npufleet
[Service]
ExecStartPre=-/usr/bin/python3 -IS {library} balancer save
ExecReload=
ExecReload=/usr/sbin/haproxy -Ws -f $CONFIG -c -q $EXTRAOPTS
ExecReload=/usr/bin/python3 -IS {library} balancer reload
ExecStop=-/usr/bin/python3 -IS {library} balancer save
"""
# The mode of haproxy.cfg and of the certificates. Only root can read these files. HAProxy reads them before it drops its rights.
PRIVATE_MODE = 0o600
# Variables that have the path of a file on the controller
CERTIFICATE = "load_balancer_tls_certificate"
KEY = "load_balancer_tls_key"
AUTHORITY = "load_balancer_client_ca"


def desired(variables: Mapping[str, Any], context: Context = EMPTY) -> Dict[str, Any]:
    """Return the files of a balancer and its servers. Raises Refusal with every reason."""
    paths = {name: variables[name] for name in (CERTIFICATE, KEY, AUTHORITY) if variables[name]}
    missing = {name: path for name, path in paths.items() if not os.path.isfile(os.path.expanduser(path))}
    if missing:
        todo = "but the controller has no such file. Correct the path"
        raise Refusal([f"{name} is {path}, {todo}" for name, path in missing.items()])
    hosts = pool(variables)
    certificate, key = variables["load_balancer_tls_certificate_text"], variables["load_balancer_tls_key_text"]
    authority = variables["load_balancer_client_ca_text"]
    now = datetime.now(timezone.utc)
    reasons = list(_reasons(variables, hosts))
    if certificate and key:
        reasons += balancer_tls.reasons(certificate, key, now)
    if authority:
        reasons += balancer_tls.authority_reasons(authority, now)
    if reasons:
        raise Refusal(reasons)
    settings, other_files = _settings(variables, context, hosts), _certificates(certificate, key, authority)
    config = balancer_config.render(settings, other_files)
    ports = ((settings.http_port, "load_balancer_http_port"), (settings.grpc_port, "load_balancer_grpc_port"))
    listeners = [[address, str(port), name] for address in settings.bind for port, name in ports]
    metrics_address, _colon, metrics_port = settings.metrics_address.rpartition(":")
    return {
        "packages": sorted(variables["load_balancer_packages"]),
        "config": config,
        "certificates": [
            {"path": path, "content": other_files[path], "mode": f"{PRIVATE_MODE:04o}"} for path in sorted(other_files)
        ],
        "absent": sorted({files.CERTIFICATE, files.CLIENT_CA} - set(other_files)),
        "drop_in": DROP_IN.format(library=library.path()),
        "digest": files.digest_in(config),
        "servers": [server.name for server in settings.servers],
        "model": settings.check.model,
        # [address, port, variable] of each listener
        "listens": [*listeners, [metrics_address.strip("[]"), metrics_port, "load_balancer_metrics_address"]],
        "expires_in": balancer_tls.days_left(certificate, now) if certificate else None,
    }


def sealed(state: Mapping[str, Any], key: str) -> Dict[str, Any]:
    """Return the desired state with digests instead of files and logins. The host computes digests with the key in `digest_key`."""
    contents = {**{entry["path"]: entry["content"] for entry in state["certificates"]}, files.CONFIG: state["config"]}
    visible = {name: value for name, value in state.items() if name not in ("config", "certificates")}
    return {
        **visible,
        "files": {path: content_digest(content, PRIVATE_MODE, key) for path, content in contents.items()},
        "lines": shown_lines(state["config"], key),
        "digest_key": key,
    }


def pool(variables: Mapping[str, Any]) -> List[str]:
    """Return the hosts of the pool in the order of the inventory."""
    return list((variables.get("groups") or {}).get(variables["load_balancer_pool"], []))


def models_of(variables: Mapping[str, Any], host: str) -> List[str]:
    """Return the names of the models that the inventory places on a host of the pool."""
    facts = variables["hostvars"][host]
    names = {host, *(facts.get("group_names") or [])}
    models = facts.get("triton_models") or []
    return [str(entry["name"]) for entry in models if not entry.get("hosts") or names & set(entry["hosts"])]


def _model_differences(variables: Mapping[str, Any], hosts: List[str]) -> Iterator[str]:
    """Yield a reason for each host of the pool whose models differ from the models of the first host."""
    by_host = {host: set(models_of(variables, host)) for host in hosts}
    for host in hosts[1:]:
        first = hosts[0]
        more, fewer = sorted(by_host[host] - by_host[first]), sorted(by_host[first] - by_host[host])
        parts = [f"only {owner} has {', '.join(names)}" for owner, names in ((host, more), (first, fewer)) if names]
        if parts:
            yield (
                f"the models of {host} and {first} differ ({'; '.join(parts)}), expected the same models on all hosts of "
                "load_balancer_pool, because HAProxy cannot see the model of a gRPC request. Place them on all, or reduce the pool"
            )


def _reasons(variables: Mapping[str, Any], hosts: List[str]) -> Iterator[str]:
    name = variables["load_balancer_pool"]
    if not hosts:
        yield f"load_balancer_pool is {name}, a group without hosts, expected the hosts with NPUs. Correct it"
    yield from _model_differences(variables, hosts)
    for host in hosts:
        if not NAME.fullmatch(host):
            yield f"{host} is in load_balancer_pool, expected host names of letters, digits and . _ : - only. Rename the host"
    if bool(variables[CERTIFICATE]) != bool(variables[KEY]):
        present, absent = (CERTIFICATE, KEY) if variables[CERTIFICATE] else (KEY, CERTIFICATE)
        yield f"{present} is set without {absent}. Set both, or neither for clients without TLS"
    if variables[AUTHORITY] and not variables[CERTIFICATE]:
        yield "load_balancer_client_ca is set without load_balancer_tls_certificate. Certificates of clients need TLS"
    if variables["load_balancer_http_port"] == variables["load_balancer_grpc_port"]:
        port = variables["load_balancer_http_port"]
        yield f"load_balancer_http_port and load_balancer_grpc_port are both {port}. Give each its own port"
    if not variables["load_balancer_bind"]:
        yield "load_balancer_bind is empty, expected at least one address. Write 0.0.0.0 for all addresses of IPv4"
    for address in variables["load_balancer_bind"]:
        if parsed_ip(address) is None:
            yield f"load_balancer_bind has {address}, expected addresses of IPv4 or IPv6 without brackets. Correct it"
    for network in variables["load_balancer_metrics_allow"]:
        try:
            ipaddress.ip_network(network)
        except ValueError:
            yield f"load_balancer_metrics_allow has {network}, expected networks such as 192.0.2.0/24. Correct it"
    metrics = str(variables["load_balancer_metrics_address"])
    address, _colon, port = metrics.rpartition(":")
    ip = parsed_ip(address.strip("[]"))
    if ip is None or not port.isdigit() or not 0 < int(port) < 65536:
        yield f"load_balancer_metrics_address is {metrics}, expected an address and a port such as 127.0.0.1:8405. Correct it"
    elif not ip.is_loopback and not variables["load_balancer_metrics_allow"]:
        actual = f"{metrics}, but load_balancer_metrics_allow is empty"
        yield f"load_balancer_metrics_address is {actual}, expected the networks of Prometheus. Add them"
    users = [entry["name"] for entry in variables["load_balancer_users"]]
    for user in sorted({user for user in users if users.count(user) > 1}):
        yield f"load_balancer_users has {user} several times, expected each user once. Remove all but one"
    if any(":" in user for user in users):
        yield "load_balancer_users has a name with a colon, which HTTP cannot send. Choose another name"


def _settings(variables: Mapping[str, Any], context: Context, hosts: List[str]) -> balancer_config.Settings:
    """Return the settings of the configuration. Raises Refusal if there is no request for the health check."""
    # _reasons() has checked that all hosts of the pool have the same models.
    model, body = context.balancer_check(models_of(variables, hosts[0]))
    users = variables["load_balancer_users"]
    headers = tuple(sorted((name.lower(), str(value)) for name, value in variables["inference_check_headers"].items()))
    return balancer_config.Settings(
        servers=[_server(variables, host) for host in hosts],
        bind=list(variables["load_balancer_bind"]),
        http_port=int(variables["load_balancer_http_port"]),
        grpc_port=int(variables["load_balancer_grpc_port"]),
        check=balancer_config.Check(model, body, str(variables["load_balancer_check_expect"]), headers),
        check_interval=int(variables["load_balancer_check_interval"]),
        check_timeout=int(variables["load_balancer_check_timeout"]),
        stream_timeout=int(variables["load_balancer_stream_timeout"]),
        maxconn=int(variables["load_balancer_maxconn"]),
        metrics_address=str(variables["load_balancer_metrics_address"]),
        metrics_allow=list(variables["load_balancer_metrics_allow"]),
        tls=bool(variables[CERTIFICATE]),
        client_certificates=bool(variables[AUTHORITY]),
        logins=[balancer_config.login_digest(str(user["name"]), str(user["password"])) for user in users],
        trace_context=bool(variables["load_balancer_trace_context"]),
    )


def _server(variables: Mapping[str, Any], host: str) -> balancer_config.Server:
    ports = (int(variable_of(variables, host, name)) for name in ("npufleet_http_port", "npufleet_grpc_port"))
    return balancer_config.Server(host, address_of(variables, host), *ports)


def _certificates(certificate: str, key: str, authority: str) -> Dict[str, str]:
    """Return {path: content} of the files that HAProxy reads besides its configuration."""
    contents = {files.CERTIFICATE: certificate.rstrip("\n") + "\n" + key.strip("\n") + "\n"} if certificate else {}
    return {**contents, files.CLIENT_CA: authority} if authority else contents
