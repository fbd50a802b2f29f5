# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The text of haproxy.cfg for a load balancer.

The text depends only on `Settings`, so that equal settings give equal bytes. Each protocol has an allow-list of calls. HAProxy
answers any other call with an error. A request reaches at most one server: HAProxy repeats a failed connection, but never a
request.
"""

from __future__ import annotations

import base64
import hashlib
import re
import urllib.parse
from typing import Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.balancer.files import (
    BINDS_ALL_IPV6,
    CERTIFICATE,
    CLIENT_CA,
    HEADER,
    STATE,
    description_line,
)
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import BACKENDS, SOCKET
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.traffic import LOG_FORMAT, RING, RING_SIZE
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import netloc

# The allow-lists of the calls of Triton: health, metadata, configuration of a model, and inference. HTTP_READ also matches
# HTTP_STATISTICS, which the frontend denies separately.
HTTP_READ = r"^/v2(/health/(live|ready)|/models/[^/]+(/versions/[0-9]+)?(/ready|/config)?)?$"
HTTP_INFER = r"^/v2/models/[^/]+(/versions/[0-9]+)?/(infer|generate|generate_stream)$"
HTTP_STATISTICS = "/v2/models/stats"
GRPC_CALLS = (
    *(f"/inference.GRPCInferenceService/Server{name}" for name in ("Live", "Ready", "Metadata")),
    *(f"/inference.GRPCInferenceService/Model{name}" for name in ("Ready", "Metadata", "Config", "Infer", "StreamInfer")),
    "/grpc.health.v1.Health/Check",
)
# The headers of a W3C trace context. By default, HAProxy removes these headers from requests. Otherwise Triton with OpenTelemetry
# would trace each request that has `traceparent`, whatever the configured rate of traces is.
TRACE_CONTEXT = ("traceparent", "tracestate")
# The response of a server with a full queue. Such a server is overloaded but not broken, so its check passes. If the check failed,
# an overload would take all servers out of the traffic, one after the other.
QUEUE_FULL = "Exceeds maximum queue size"
# The weight of each server. Playbooks set a lower weight for a changed host.
WEIGHT = 100
# Time limits in seconds: a connection to a server, the header of a request, and an idle connection of a client
CONNECT_SECONDS, HEADER_SECONDS, KEEP_ALIVE_SECONDS = 5, 30, 600
# Connections to a host without power are closed after 30 s of silence. On an idle connection, TCP sends PROBE_COUNT probes after
# PROBE_IDLE_SECONDS, one every PROBE_INTERVAL_SECONDS. A connection with data in flight is closed if the data are not acknowledged
# for ACKNOWLEDGE_SECONDS. A slow server keeps its connections, because its kernel answers the probes and acknowledges the data.
PROBE_IDLE_SECONDS, PROBE_INTERVAL_SECONDS, PROBE_COUNT, ACKNOWLEDGE_SECONDS = 15, 5, 3, 30
# HAProxy 2.6 ignores tcp-ut in the line `default-server`, so each line `server` has it.
SERVER = f"weight {WEIGHT} tcp-ut {ACKNOWLEDGE_SECONDS}s"
# The most bytes of a log line in the ring, the buffer in which HAProxy keeps its log
MAX_LINE_BYTES = 512


class Server(NamedTuple):
    """A host of the pool."""

    name: str
    address: str
    http_port: int
    grpc_port: int


class Check(NamedTuple):
    """The inference request that proves that a server answers, and the text that its response has to contain."""

    model: str
    body: str
    expect: str
    headers: Tuple[Tuple[str, str], ...] = ()


class Settings(NamedTuple):
    """The settings of a balancer."""

    servers: Sequence[Server]
    bind: Sequence[str]
    http_port: int
    grpc_port: int
    check: Check
    # Seconds between two checks of a healthy server
    check_interval: int
    # Seconds in which a server must answer a check
    check_timeout: int
    # Longest silence of a connection in seconds
    stream_timeout: int
    maxconn: int
    metrics_address: str
    metrics_allow: Sequence[str] = ()
    # True if clients connect by TLS
    tls: bool = False
    # True if clients need a certificate
    client_certificates: bool = False
    # SHA-256 of each header `Authorization` that is accepted. The list is empty if clients need no login.
    logins: Sequence[str] = ()
    # True if Triton gets the trace context of clients
    trace_context: bool = False


def login_digest(name: str, password: str) -> str:
    """Return the SHA-256 of the header `Authorization` of a login, in the notation of HAProxy."""
    header = "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()
    return hashlib.sha256(header.encode()).hexdigest().upper()


def render(settings: Settings, files: Mapping[str, str]) -> str:
    """Return the text of haproxy.cfg. `files` are the contents of the other files that HAProxy reads, by path.

    The text contains a digest of itself and of these files. A running HAProxy reports the digest of its configuration.
    """
    lines = list(_lines(settings))
    digest = hashlib.sha256("\n".join(lines).encode())
    for path in sorted(files):
        digest.update(f"\0{path}\0{files[path]}".encode())
    text = "\n".join(line.replace(description_line(""), description_line(digest.hexdigest()[:16])) for line in lines)
    return text + "\n"


def _lines(settings: Settings) -> Iterator[str]:
    yield HEADER
    yield from _section("global", _global(settings))
    description = f"description {quoted('one line for each finished request')}"
    yield from _section(f"ring {RING}", [description, "format raw", f"maxlen {MAX_LINE_BYTES}", f"size {RING_SIZE}"])
    yield from _section("defaults", _defaults(settings))
    yield from _section("frontend npufleet_http_in", _http_frontend(settings))
    yield from _section("frontend npufleet_grpc_in", _grpc_frontend(settings))
    yield from _section(f"backend {BACKENDS['http']}", _http_backend(settings))
    yield from _section(f"backend {BACKENDS['grpc']}", _grpc_backend(settings))
    yield from _section("frontend npufleet_metrics", _metrics(settings))


def _section(name: str, lines: Sequence[str]) -> Iterator[str]:
    yield ""
    yield name
    yield from (f"    {line}" for line in lines)


def _global(settings: Settings) -> List[str]:
    return [
        description_line(""),
        "log /dev/log local0 notice",
        "chroot /var/lib/haproxy",
        "user haproxy",
        "group haproxy",
        f"maxconn {settings.maxconn}",
        f"stats socket {SOCKET} mode 600 level admin expose-fd listeners",
        "stats timeout 2m",
        f"server-state-file {STATE}",
        # After a reload, the old process ends when its last stream ends, and at this limit at the latest.
        f"hard-stop-after {settings.stream_timeout + KEEP_ALIVE_SECONDS}s",
        "ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets",
    ]


def _defaults(settings: Settings) -> List[str]:
    return [
        "mode http",
        "log global",
        "option dontlognull",
        # HAProxy cancels a request if its client closes the connection.
        "option abortonclose",
        # If HAProxy cannot establish a connection, it tries another server. It repeats nothing else.
        "retries 2",
        "retry-on conn-failure",
        "option redispatch 1",
        "load-server-state-from-file global",
        f"timeout connect {CONNECT_SECONDS}s",
        f"timeout http-request {HEADER_SECONDS}s",
        f"timeout http-keep-alive {KEEP_ALIVE_SECONDS}s",
        f"timeout queue {HEADER_SECONDS}s",
        f"timeout client {settings.stream_timeout}s",
        f"timeout server {settings.stream_timeout}s",
        f"timeout check {settings.check_timeout}s",
        # If a host has lost its power, these probes end its requests in flight. The health checks would not end them.
        "option srvtcpka",
        f"srvtcpka-idle {PROBE_IDLE_SECONDS}s",
        f"srvtcpka-intvl {PROBE_INTERVAL_SECONDS}s",
        f"srvtcpka-cnt {PROBE_COUNT}",
    ]


def _bind(settings: Settings, port: int, protocol: str) -> Iterator[str]:
    """Yield the bind lines of a frontend. `protocol` is the ALPN list for TLS. Without TLS, the line for gRPC sets HTTP/2."""
    for address in settings.bind:
        words = ["bind", netloc(address, port)]
        if address == BINDS_ALL_IPV6:
            words.append("v4v6")
        if settings.tls:
            words += ["ssl", "crt", CERTIFICATE, "alpn", protocol]
            words += ["ca-file", CLIENT_CA, "verify", "required"] if settings.client_certificates else []
        elif protocol == "h2":
            words += ["proto", "h2"]
        yield " ".join(words)


def _log() -> List[str]:
    return [
        f"log ring@{RING} format raw local0",
        f'log-format "{LOG_FORMAT}"',
        # HAProxy writes the log line after it has discarded the headers of the response, so the status is kept in a variable.
        "http-response set-var(txn.npufleet_grpc_status) res.fhdr(grpc-status)",
    ]


def _client_rules(settings: Settings) -> Iterator[str]:
    """Yield the rules that refuse clients without a login, and remove the login and the trace context from the request."""
    if settings.logins:
        yield "http-request set-var(txn.npufleet_login) req.fhdr(authorization),sha2(256),hex"
        yield from (f"acl npufleet_known var(txn.npufleet_login) -m str {digest}" for digest in sorted(settings.logins))
        yield (
            "http-request deny deny_status 401 content-type application/json "
            + """string '{"error":"a login is needed"}' hdr www-authenticate 'Basic realm="npufleet"' unless npufleet_known"""
        )
        yield "http-request del-header authorization"
    if not settings.trace_context:
        # These rules also cover gRPC, whose metadata are headers of HTTP/2.
        yield from (f"http-request del-header {name}" for name in TRACE_CONTEXT)


def _deny(condition: str) -> str:
    error = '{"error":"the load balancer passes inference, health and metadata calls only"}'
    return f"http-request deny deny_status 403 content-type application/json string {quoted(error)} {condition}"


def _http_frontend(settings: Settings) -> List[str]:
    return [
        *_bind(settings, settings.http_port, "h2,http/1.1"),
        # Without this option, a reload would close idle connections, which could lose requests. With the option, HAProxy closes
        # each connection after its next response.
        "option idle-close-on-response",
        *_log(),
        "acl npufleet_reads method GET HEAD",
        "acl npufleet_posts method POST",
        f"acl npufleet_information path -m reg {HTTP_READ}",
        f"acl npufleet_statistics path {HTTP_STATISTICS}",
        f"acl npufleet_inference path -m reg {HTTP_INFER}",
        _deny("unless npufleet_reads npufleet_information !npufleet_statistics or npufleet_posts npufleet_inference"),
        *_client_rules(settings),
        f"default_backend {BACKENDS['http']}",
    ]


def _grpc_frontend(settings: Settings) -> List[str]:
    return [
        *_bind(settings, settings.grpc_port, "h2"),
        *_log(),
        "acl npufleet_posts method POST",
        *(f"acl npufleet_call path {path}" for path in GRPC_CALLS),
        _deny("unless npufleet_posts npufleet_call"),
        *_client_rules(settings),
        f"default_backend {BACKENDS['grpc']}",
    ]


def _http_backend(settings: Settings) -> List[str]:
    check = settings.check
    headers = [("host", "npufleet"), ("content-type", "application/json"), *check.headers]
    header_options = " ".join(f"hdr {name} {quoted(value.replace('%', '%%'))}" for name, value in headers)
    uri = f"/v2/models/{urllib.parse.quote(check.model, safe='')}/infer"
    intervals = f"inter {settings.check_interval}s fastinter 1s downinter 1s fall 2 rise 2"
    return [
        "balance random(2)",
        "option httpchk",
        f"http-check send meth POST uri {quoted(uri)} ver HTTP/1.1 {header_options} body {quoted(check.body)}",
        "http-check expect status 200,503",
        f"http-check expect rstring {quoted(f'{re.escape(check.expect)}|{QUEUE_FULL}')}",
        # HAProxy takes the address of a server from the configuration, and never from the saved state.
        "default-server init-addr libc,none",
        *(f"server {name} {netloc(host, port)} check {intervals} {SERVER}" for name, host, port, _port in settings.servers),
    ]


def _grpc_backend(settings: Settings) -> List[str]:
    options = f"proto h2 track {BACKENDS['http']}"
    return [
        "balance random(2)",
        "default-server init-addr libc,none",
        *(f"server {name} {netloc(host, port)} {options}/{name} {SERVER}" for name, host, _port, port in settings.servers),
    ]


def _metrics(settings: Settings) -> List[str]:
    allowed = ["127.0.0.0/8", "::1", *settings.metrics_allow]
    return [
        f"bind {settings.metrics_address}",
        "no log",
        *(f"acl npufleet_allowed src {network}" for network in allowed),
        f"acl npufleet_serving nbsrv({BACKENDS['http']}) gt 0",
        "http-request deny unless npufleet_allowed",
        "http-request use-service prometheus-exporter if { path /metrics }",
        "http-request return status 200 content-type text/plain string ready if { path /ready } npufleet_serving",
        "http-request return status 503 content-type text/plain string 'no server is up' if { path /ready }",
        "http-request deny deny_status 404",
    ]


def quoted(text: str) -> str:
    """Return a text in quotes, as one word of the configuration."""
    return "'" + text.replace("'", "'\\''") + "'"
