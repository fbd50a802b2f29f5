"""The modules of a load balancer as tasks that a host delegates to its balancers."""

from __future__ import annotations

import getpass
import json
import os
import sys
from pathlib import Path

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.balancer import drains
from helpers import ansible_playbook
from small_haproxy import small_haproxy
from small_triton import small_triton

PLAYBOOK = """
- name: Drain the hosts
  hosts: npus
  gather_facts: false
  module_defaults:
    npufleet.triton.balancer_server: &paths
      socket: "{{ home }}/admin.sock"
      master_socket: "{{ home }}/master.sock"
      directory: "{{ home }}"
    npufleet.triton.balancer_info: *paths
  tasks:
    - name: Drain the host on each balancer
      npufleet.triton.balancer_server:
        name: "{{ inventory_hostname }}"
        state: drained
        kind: rollout
        reason: "{{ '{{ 1 + 1 }}' }}"
      delegate_to: "{{ balancer }}"
      loop: "{{ groups['balancers'] }}"
      loop_control:
        loop_var: balancer
      register: drain
    - name: Read the balancer
      npufleet.triton.balancer_info:
      delegate_to: lb1
      register: start
    - name: Read the window
      npufleet.triton.balancer_info:
        since: "{{ start.now }}"
      delegate_to: lb1
      register: window
    - name: Write the results
      ansible.builtin.copy:
        content: "{{ {'drain': drain.results, 'window': window} | to_json }}"
        dest: "{{ home }}/results.json"
        mode: "0600"
    - name: Drain a host that the balancer does not have
      npufleet.triton.balancer_server:
        name: npu9
        state: drained
      delegate_to: lb1
"""


def test_a_host_delegates_its_drain_to_each_balancer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may open the lock of a balancer")
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    groups = {"npus": {"hosts": {"npu1": local}}, "balancers": {"hosts": {"lb1": local, "lb2": local}}}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"children": groups, "vars": {"home": str(tmp_path)}}}))
    with small_triton() as one, small_triton() as two:
        ports = {"npu1": (one.http_port, one.grpc_port), "npu2": (two.http_port, two.grpc_port)}
        with small_haproxy(tmp_path, ports):
            done = ansible_playbook(tmp_path, "-i", tmp_path / "hosts.json", tmp_path / "play.yml", "--diff")
    results = json.loads((tmp_path / "results.json").read_text())
    assert [result["changed"] for result in results["drain"]] == [True, False]
    (record,) = json.loads((tmp_path / drains.RECORDS).read_text()).values()
    assert record == results["drain"][1]["server"]["drained"]
    # The reason of a drain is text of a person, and no template.
    assert (record["kind"], record["reason"], record["by"].split("@")[0]) == ("rollout", "{{ 1 + 1 }}", getpass.getuser())
    assert record["run"].count("/") == 2
    assert (results["window"]["complete"], set(results["window"]["servers"])) == (True, {"npu1", "npu2"})
    assert "+    state: drained" in done.stdout
    assert "lb1: the balancer has no server 'npu9'. Its servers: npu1, npu2" in done.stdout + done.stderr
    assert "npu1                       : ok=4    changed=2 " in done.stdout
