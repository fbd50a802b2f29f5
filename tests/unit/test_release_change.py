"""What another release row brings to a host, in sentences: up, down, and from what nobody knows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.filter.by_host import by_host
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import release_change as subject
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.release_change import Release
from helpers import ROOT, fleet

ROWS: dict[str, Any] = yaml.safe_load((ROOT / "files/releases.yml").read_text())["npufleet_releases"]
CA22: dict[str, Any] = {"CA22/0.9": {}, "CA22/0.11": {}}


def row(name: str, **changes: Any) -> Release:
    return Release(name, {**copy.deepcopy(ROWS[name]), **changes})


def pair(old: str | None, new: str) -> list[str]:
    return list(subject.row_changes(row(old) if old else None, row(new)))


def host_changes(old: str | None, new: str, *plan: dict[str, Any], maintenance: Any = None, **given: Any) -> list[str]:
    base = {
        "rbln_release": new,
        "npufleet_release_row": ROWS[new],
        "npufleet_release_rows": ROWS,
        "npufleet_card": "RBLN-CA22",
        "npufleet_build_host": "npu1",
        "triton_models": [],
    }
    state = {"plan": list(plan), "actual": {"driver": {}}, "maintenance": maintenance}
    return list(subject.host_changes(fleet(**{**base, **given}), state, row(old) if old else None, row(new)))


def item(concern: str, action: str, name: str = "x", current: Any = None) -> dict[str, Any]:
    return {"concern": concern, "name": name, "current": current, "desired": "y", "action": action}


# Rows


def test_versions_support_and_vulnerabilities_of_a_way_up() -> None:
    said = pair("25.08", "26.05")
    assert said[0] == (
        "release 25.08 to 26.05: SDK 0.9.4 to 0.11.2, Triton 2.60.0 to 2.69.0, Python 3.12 as before, "
        "tritonclient 2.60.0 to 2.69.0, base image docker.io/rebellions/tritonserver:25.08-vllm-python-py3 to "
        "nvcr.io/nvidia/tritonserver:26.05-vllm-python-py3"
    )
    assert said[1:] == [
        "release 26.05 no longer supports RBLN-CA12",
        "kernels of ubuntu-22.04: ==6.8.0 to ==6.8.0,<=6.8.0-117",
        "kernels of ubuntu-24.04: ==6.8.0 to ==6.8.0,<=6.8.0-117",
        "from driver 3.0.0 on: the driver's daemon reports power in uW and temperature in millidegrees (before: in W and in "
        "degrees). Adapt your programs that depend on it.",
        "from driver 3.2.0 on: the driver's service is rbln-smd.service (before: rbln_daemon.service). "
        "Adapt your programs that depend on it.",
        "from sdk 0.11.0 on: compiled files have another form, and the compile option is num_devices (before: "
        "tensor_parallel_size). Adapt your programs that depend on it.",
        "from triton 2.65.0 on: --http-max-input-size counts decompressed bytes as well (before: sent bytes only). Adapt your "
        "programs that depend on it.",
        "release 26.05 fixes known vulnerabilities (NVIDIA security bulletins 5723, 5734, 5790, 5816, 5828, 5848, 5853, 5860)",
        "release 26.05 keeps known vulnerabilities (NVIDIA security bulletins 5865, 5875)",
    ]


def test_a_way_down_opens_what_the_way_up_closed() -> None:
    said = pair("26.07", "26.01")
    assert "release 26.01 no longer supports RBLN-CR13" in said
    gone = "almalinux-10.2, almalinux-9.8, rhel-10.0, rhel-10.2, rhel-9.8, rocky-10.2, rocky-9.8"
    assert f"release 26.01 no longer supports {gone}" in said
    assert [sentence for sentence in said if sentence.startswith("before driver 3.2.0: rbln_daemon.service (no longer: ")]
    assert not [sentence for sentence in said if "driver 3.0.0" in sentence]
    assert said[-1] == (
        "release 26.01 adds known vulnerabilities (NVIDIA security bulletins 5816, 5828, 5848, 5853, 5860, 5865, 5875)"
    )


def test_a_row_without_known_vulnerabilities_says_as_of_when() -> None:
    words = "release 26.07 has no known vulnerabilities as of 2026-08-18. Look for newer bulletins of NVIDIA."
    assert words in pair("26.05", "26.07") and words in pair(None, "26.07")


def test_what_triton_changes_for_its_users_is_told() -> None:
    said = " ".join(pair("24.01", "26.07"))
    for words in ("100 levels deep", "may have 64 MiB", "no TensorFlow backend", "decompressed bytes"):
        assert words in said
    assert "TensorFlow" not in " ".join(pair("25.08", "26.07"))


def test_a_row_that_is_untested_says_so_on_every_way() -> None:
    for old in ("25.08", None, "26.07-sdk0.9"):
        assert pair(old, "26.07-sdk0.9")[-1].startswith("release 26.07-sdk0.9 is untested: the vendor pairs SDK 0.9.4")
    assert not [sentence for sentence in pair("26.07-sdk0.9", "26.07") if "untested" in sentence]


def test_from_what_nobody_knows_the_new_row_is_told_as_it_is() -> None:
    assert pair(None, "26.05") == [
        "unknown release to 26.05: SDK 0.11.2, Triton 2.69.0, Python 3.12, tritonclient 2.69.0, "
        "base image nvcr.io/nvidia/tritonserver:26.05-vllm-python-py3",
        "release 26.05 has known vulnerabilities (NVIDIA security bulletins 5865, 5875)",
    ]
    (first, *_more) = subject.row_changes(Release("of-a-site", {}), row("26.05"))
    assert first.startswith("release of-a-site to 26.05: SDK 0.11.2, ")


@pytest.mark.parametrize(
    ("label", "inventory", "found"),
    [("25.08", "26.01", "25.08"), (None, "26.01", "26.01"), (None, "26.05", None), ("", "", None), ("gone", "26.01", "gone")],
)
def test_what_a_host_runs(label: str | None, inventory: str, found: str | None) -> None:
    before = subject.current_release(label, inventory, "26.05", ROWS)
    assert (before.name if before else None) == found
    assert before is None or before.row == ROWS.get(before.name, {})


@pytest.mark.parametrize(
    ("version", "wanted", "so"),
    [("0.11.1.post1", "0.11.0", True), ("0.9.4", "0.11.0", False), ("3.2.2-abc", "3.2.0", True), ("2.67.0", "2.68.0", False)],
)
def test_versions_are_compared_as_numbers(version: str, wanted: str, so: bool) -> None:
    assert subject.reached(version, wanted) is so


# Hosts


def test_models_that_need_another_compiled_file() -> None:
    models = [
        {"name": "both", "artefacts": CA22},
        {"name": "old", "artefacts": {"CA22/0.9": {}}},
        {"name": "plain"},
        {"name": "elsewhere", "artefacts": {"CA22/0.9": {}}, "hosts": ["npu9"]},
    ]
    said = host_changes("25.08", "26.05", item("models", "release"), triton_models=models)
    assert said[:2] == [
        "no compiled file for CA22/0.11, compile first: old",
        "compiled files for CA22/0.11 replace those for CA22/0.9: both",
    ]
    # Of one line of the SDK they stay
    assert not [
        entry
        for entry in host_changes("25.08", "26.07-sdk0.9", item("image", "deliver"), triton_models=models)
        if "compiled" in entry
    ]


@pytest.mark.parametrize(
    ("old", "new", "arguments", "said"),
    [
        ("26.01", "26.05", [], True),
        ("26.01", "26.05", ["--allow-client-shm=true"], False),
        ("26.05", "26.07", [], False),
        ("26.07", "26.01", [], False),
        (None, "26.07", [], False),
    ],
)
def test_client_shared_memory(old: str | None, new: str, arguments: list[str], said: bool) -> None:
    found = host_changes(old, new, item("image", "deliver"), triton_server_extra_args=arguments)
    assert bool([entry for entry in found if "--allow-client-shm=true" in entry]) is said


def test_driver_image_and_what_else_changes() -> None:
    plan = [
        item("driver", "install", "package", "3.2.2"),
        item("driver", "hold", "hold"),
        item("driver", "reload", "module"),
        item("engine", "configure", "daemon.json"),
        item("image", "build"),
        item("models", "release", "digits"),
        item("server", "replace", "container.image"),
        item("server", "replace", "container.binds"),
        item("probe", "configure", "checks"),
    ]
    given = {"rbln_driver_package_url": "https://a.example.com/r-3.5.1.run?sig=x"}
    assert host_changes("26.05", "26.07", *plan, **given) == [
        "driver 3.2.2 to 3.5.1 (.run) from https://a.example.com/r-3.5.1.run: the server stops meanwhile, the host is not rebooted",
        "image: built here from nvcr.io/nvidia/tritonserver:26.07-vllm-python-py3",
        "driver changes: hold",
        "engine changes: daemon.json",
        "server changes: container.image, container.binds",
        "probe changes: checks",
    ]
    assert host_changes("26.05", "26.07", item("image", "build"), npufleet_build_host="npu9") == [
        "image: delivered after npu9 has built it"
    ]
    assert host_changes("26.05", "26.07", item("image", "deliver"), item("image", "publish")) == [
        "image: delivered as recorded in the lock file",
        "image: published for the other hosts",
    ]
    assert host_changes(None, "26.07", item("driver", "install", "package")) == [
        "driver none to 3.5.1 (.run) from a file that is not named yet: the server stops meanwhile, the host is not rebooted"
    ]


def test_a_reboot_is_told_where_it_may_be() -> None:
    (said,) = host_changes("26.05", "26.07", item("driver", "install", "package", "3.2.2"), rbln_driver_reboot=True)
    assert said.endswith("the server stops meanwhile, the host is rebooted if its cards need that")


def test_a_driver_that_somebody_else_keeps() -> None:
    plan = item("driver", "inspect", "installed module", "3.2.2")
    assert host_changes("26.05", "26.07", plan, rbln_driver_form="present")[0] == (
        "driver 3.2.2 to 3.5.1: install it manually first (rbln_driver_form: present)"
    )


def test_a_host_that_is_out_and_one_that_has_nothing_to_do() -> None:
    assert host_changes("26.05", "26.07", item("image", "build"), maintenance={"reason": "x"}) == [
        "in maintenance: nothing is changed until maintenance ends"
    ]
    assert host_changes("26.07", "26.07") == ["runs release 26.07 and is in sync: nothing to do"]


def test_a_sentence_that_hosts_share_stands_once() -> None:
    assert by_host({"npu1": ["a", "b"], "npu2": ["a"], "npu3": []}) == "  - npu1, npu2: a\n  - npu1: b"
    assert by_host({"npu1": ["a"], "npu2": ["a"]}) == "  - every host: a"
    assert by_host({"npu1": ["a\nnpu2 : ok"]}) == "  - npu1: a\n  npu2 : ok"
    assert by_host({}) == ""
