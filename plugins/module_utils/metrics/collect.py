# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The program that writes the state of the cards and of the host as metrics for node exporter. A timer starts this program."""

from __future__ import annotations

# This file is a program, which prints to the journal. pylint: disable=ansible-bad-function
import collections
import os
import sys
import time
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import textfile
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import drains, files
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.runtime import MASTER, SOCKET, BalancerError
from ansible_collections.npufleet.triton.plugins.module_utils.balancer.servers import Balancer
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import driver, traffic
from ansible_collections.npufleet.triton.plugins.module_utils.driver import readings, vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import durable
from ansible_collections.npufleet.triton.plugins.module_utils.metrics import cards, certificates, drained, host
from ansible_collections.npufleet.triton.plugins.module_utils.store import StoreError, current_models, read_holds
from ansible_collections.npufleet.triton.plugins.module_utils.system import read_text, seconds_since_1970
from ansible_collections.npufleet.triton.plugins.module_utils.triton import stubs
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import read_served
from ansible_collections.npufleet.triton.plugins.module_utils.watch.evidence import Failure, Observer
from ansible_collections.npufleet.triton.plugins.module_utils.watch.settings import Metrics as Settings
from ansible_collections.npufleet.triton.plugins.module_utils.watch.settings import load

CARDS_FILE, HOST_FILE = "npufleet_cards.prom", "npufleet_host.prom"
MODULE_VERSION = f"/sys/module/{driver.MODULE}/version"


def warn(message: str) -> None:
    """Write a warning to the journal, which reads its level from the prefix."""
    print(f"<4>{message}", file=sys.stderr, flush=True)


def cards_page(settings: Settings) -> str:
    """Return the metrics of the cards."""
    found: Optional[List[readings.Card]] = None
    try:
        found = vendor_tool.query_readings(timeout=10.0)
    except ValueError as error:
        warn(f"the cards cannot be read: {error}")
    loaded = (read_text(MODULE_VERSION) or "").strip() or None
    versions = cards.Driver(loaded, settings.driver, settings.npus)
    return textfile.page(cards.families(versions, found, time.time()), cards.HELP)


def host_page(settings: Settings, change: bool) -> str:
    """Return the metrics of the host."""
    maintenance = _since(lease.maintenance(os.path.join(settings.root, lease.MAINTENANCE_FILE)), time.time())
    if settings.npu_host:
        found = host.families(read_server(settings, change, maintenance))
    else:
        found = host.condition(time.time(), change, maintenance)
    if settings.load_balancer:
        found.update(drained_servers())
    found.update(certificates.families(read_certificates(settings.certificates)))
    return textfile.page(found, {**host.HELP, **drained.HELP, **certificates.HELP})


def read_server(settings: Settings, change: bool, maintenance: Optional[float]) -> host.Facts:
    """Return the facts of a host with NPUs."""
    limited = traffic.read({"record": os.path.join(settings.root, traffic.RECORD)})["limited"]
    processes, shm = read_container(Observer(settings))
    now = time.time()
    return host.Facts(
        now=now,
        desired=desired_models(settings.root),
        served=read_served({"address": settings.address, "http_port": settings.http_port, "key": settings.key}),
        stubs=processes,
        shm=shm,
        changing=change,
        maintenance=maintenance,
        limited=_since(limited, now),
        holds={name: _since({"since": hold.get("when")}, now) or now for name, hold in read_holds(settings.root).items()},
    )


def drained_servers() -> textfile.Families:
    """Return the metrics of the drained servers of this load balancer, or {} if HAProxy does not answer."""
    try:
        servers = Balancer(SOCKET, MASTER).servers()
    except BalancerError as error:
        warn(f"the servers of the load balancer cannot be read: {error}")
        return {}
    return drained.families(servers, drains.read(files.HOME).by_server)


def read_certificates(paths: Sequence[str]) -> Dict[str, float]:
    """Return {path: expiry time} of the certificates. A file that cannot be read is left out."""
    ends = {}
    for path in paths:
        try:
            ends[path] = certificates.expiry(path)
        except certificates.Unreadable as error:
            warn(f"the expiry time of the certificate {path} cannot be read: {error}")
    return ends


def _since(record: Optional[Mapping[str, object]], now: float) -> Optional[float]:
    """Return the time in a record, `now` if that time is invalid, or None without a record."""
    return None if record is None else seconds_since_1970(str(record.get("since"))) or now


def desired_models(root: str) -> Dict[str, Dict[str, object]]:
    """Return {model: facts of its release} for each model with a link in served/, or {} if a record cannot be read."""
    try:
        return current_models(root, {})
    except StoreError as error:
        warn(str(error))
        return {}


def read_container(observer: Observer) -> Tuple[Dict[str, host.Stubs], Optional[Tuple[int, int]]]:
    """Return the processes of each model in the container, and the (size, used bytes) of its shared memory.

    Return ({}, None) if the container does not run or cannot be read.
    """
    try:
        init = observer.first_process()
        if init is None:
            return {}, None
        shm = shared_memory(init)
        page = observer.metrics()
        index = observer.index() if page is not None else None
        ready = observer.ready(index or {}).served
        instance_counts: Dict[str, int] = collections.Counter()
        for entry in ready:
            instance_counts[entry.model] += len(entry.instances)
        missing = observer.missing_instances(init, ready)
    except Failure as failure:
        warn(f"{failure}. {failure.next_step}")
        return {}, None
    return host.count_stubs(instance_counts, missing, page or {}), shm


def shared_memory(init: int) -> Optional[Tuple[int, int]]:
    """Return the size and used bytes of /dev/shm of the container whose first process is `init`, or None if it has ended."""
    try:
        found = os.statvfs(f"{stubs.PROC}/{init}/root/dev/shm")
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, (found.f_blocks - found.f_bfree) * found.f_frsize


def run(config: str) -> int:
    """Write the metrics once. Return 0 if all files were written."""
    settings = load(config, Settings)
    current = lease.read(settings.root)
    change = current is not None and lease.live(settings.root, current)
    try:
        # The directory belongs to node exporter. If it is missing, this call raises an error, while durable.write would create it.
        os.stat(settings.directory)
        # The cards are not read during a change: the vendor's tool opens them, and a reload of the driver fails if a card is open.
        if settings.npu_host and not change:
            durable.write(os.path.join(settings.directory, CARDS_FILE), cards_page(settings))
        durable.write(os.path.join(settings.directory, HOST_FILE), host_page(settings, change))
    except OSError as error:
        print(f"<3>the metrics cannot be written: {error}", file=sys.stderr)
        return 1
    return 0
