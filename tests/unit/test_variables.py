"""What is refused before a host is asked, and which concerns a host has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import CONCERNS, NPU_HOSTS, concerns_of
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils import action
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import variables as subject
from helpers import ROOT, ROW, fleet
from linting import PYTHON

NPU = [name for name, concern in CONCERNS.items() if NPU_HOSTS in concern.groups]
ROWS = {"24.01": ROW, "25.08": {**ROW, "cards": ["RBLN-CA12", "RBLN-CA22"]}}


def given(**changes: Any) -> dict[str, Any]:
    """Variables from which something can be wanted, with changes; None takes one away."""
    variables = {
        "inventory_hostname": "npu1",
        "group_names": ["npu_hosts"],
        "rbln_release": "24.01",
        "npufleet_npus": 2,
        "npufleet_card": "RBLN-CA12",
        "npufleet_release_rows": ROWS,
        "triton_models": [{"name": "digits"}],
        "triton_server_model_control_mode": "explicit",
        **changes,
    }
    return {name: value for name, value in variables.items() if value is not None}


def reasons(concerns: list[str] | None = None, **changes: Any) -> list[str]:
    try:
        subject.validate(given(**changes), NPU if concerns is None else concerns)
    except Refusal as refusal:
        return refusal.reasons
    return []


def test_concerns_of_a_host() -> None:
    assert concerns_of(["all", "npu_hosts"], "npu_hosts") == NPU
    assert concerns_of(["monitoring_hosts"], "npu_hosts") == ["monitoring"]
    assert concerns_of(["monitoring_hosts", "npu_hosts"], "npu_hosts") == [*NPU, "monitoring"]
    assert concerns_of(["load_balancer_hosts"], "npu_hosts") == ["metrics", "balancer"]
    assert concerns_of(["load_balancer_hosts", "npu_hosts"], "npu_hosts") == [name for name in CONCERNS if name != "monitoring"]
    assert concerns_of(["all", "ungrouped"], "npu_hosts") == []
    assert concerns_of(["all", "edge"], "edge") == NPU
    assert concerns_of(["all", "npu_hosts"], "edge") == []


def test_good_variables_are_accepted() -> None:
    assert reasons() == []
    assert reasons(rbln_release="25.08", npufleet_card="RBLN-CA22", triton_models=[]) == []


@pytest.mark.parametrize("mode", ["none", "poll", "explicit"])
def test_every_mode_is_accepted(mode: str) -> None:
    assert reasons(triton_server_model_control_mode=mode) == []


def test_all_missing_variables_are_named_at_once() -> None:
    assert reasons(rbln_release=None, npufleet_npus=None, npufleet_card=None, triton_models=None) == [
        "rbln_release is not set, expected the row of files/releases.yml that this fleet runs. Set it in the inventory.",
        "npufleet_npus is not set, expected the number of NPUs (/dev/rbln*) on the host. Set it in the inventory.",
        "npufleet_card is not set, expected the type of its cards, such as RBLN-CA22. Set it in the inventory.",
        "triton_models is not set, expected the list of models to serve. Set it in the inventory.",
    ]


@pytest.mark.parametrize("name", ["rbln_release", "npufleet_npus", "npufleet_card", "triton_models"])
def test_each_variable_is_required(name: str) -> None:
    (reason,) = reasons(**{name: None})
    assert reason.startswith(name + " is not set, expected ")


def test_monitoring_alone_needs_none_of_them() -> None:
    missing = {"rbln_release": None, "npufleet_npus": None, "npufleet_card": None, "triton_models": None}
    assert reasons(["monitoring"], **missing) == []
    assert len(reasons(["monitoring", "driver"], **missing)) == 4


@pytest.mark.parametrize(
    ("groups", "concerns", "count"),
    [
        (["load_balancer_hosts"], ["metrics", "balancer"], 0),
        (["load_balancer_hosts", "npu_hosts"], ["balancer"], 0),
        (["load_balancer_hosts", "npu_hosts"], ["metrics", "balancer"], 4),
        (["npu_hosts"], ["metrics"], 4),
    ],
)
def test_metrics_need_the_variables_of_npus_only_on_hosts_with_npus(groups: list[str], concerns: list[str], count: int) -> None:
    missing = {"rbln_release": None, "npufleet_npus": None, "npufleet_card": None, "triton_models": None}
    assert len(reasons(concerns, group_names=groups, **missing)) == count


def test_release_without_a_row() -> None:
    assert reasons(rbln_release="24.10") == [
        "rbln_release is 24.10, expected one of 24.01, 25.08. Correct it, or add a row to npufleet_extra_releases."
    ]


def test_card_that_the_release_does_not_support() -> None:
    assert reasons(rbln_release="25.08", npufleet_card="RBLN-CA25") == [
        "npufleet_card is RBLN-CA25, expected one of RBLN-CA12, RBLN-CA22 for release 25.08. Choose a release for this card."
    ]


def test_model_named_twice_for_the_same_hosts() -> None:
    twice = [{"name": "words"}, {"name": "digits"}, {"name": "words"}, {"name": "digits", "hosts": ["npu1"]}]
    assert reasons(triton_models=twice) == [
        "triton_models contains digits, words several times for the same hosts. Remove all but one."
    ]


def test_model_named_twice_for_hosts_that_differ_is_accepted() -> None:
    models = [{"name": "digits", "hosts": ["npu1"]}, {"name": "digits", "hosts": ["npu2"]}, {"name": "words"}]
    assert reasons(triton_models=[*models, {"name": "words", "hosts": ["npu2"]}]) == []
    assert reasons(triton_models=models) == []


def test_model_named_twice_for_this_host_by_host_and_by_group() -> None:
    both = [{"name": "digits", "hosts": ["npu1"]}, {"name": "digits", "hosts": ["npu_hosts"], "instances": 2}]
    assert reasons(triton_models=both) == ["triton_models contains digits several times for the same hosts. Remove all but one."]


def test_all_reasons_come_at_once() -> None:
    found = reasons(
        npufleet_card="RBLN-CA99",
        triton_server_allow_http=False,
        triton_models=[{"name": "digits"}, {"name": "digits"}],
    )
    assert [reason.split()[0] for reason in found] == [
        "npufleet_card",
        "triton_server_allow_http",
        "triton_models",
    ]


# The desired state


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one model that serves as it stands."""
    (tmp_path / "models/digits/1").mkdir(parents=True)
    (tmp_path / "models/digits/config.pbtxt").write_text('backend: "python"\n')
    (tmp_path / "models/digits/1/model.py").write_text(PYTHON)
    (tmp_path / "backends").mkdir()
    return tmp_path / "models"


def host(repository: Path, **changes: Any) -> Any:
    return fleet(
        npufleet_model_repository=str(repository),
        triton_image_backends=str(repository.parent / "backends"),
        triton_models=[{"name": "digits"}],
        npufleet_release_rows=ROWS,
        **changes,
    )


def test_desired_has_what_was_asked_for(repository: Path) -> None:
    wanted, manifests = subject.desired(host(repository), NPU)
    assert list(wanted) == NPU
    assert list(manifests) == ["digits"]
    assert wanted["driver"]["version"] == "1.2.92"
    (digits,) = wanted["server"]["models"].values()
    assert digits == {
        **{key: manifests["digits"][key] for key in ("release", "source", "memory")},
        "versions": ["1"],
        "steps": [],
        "switch": "beside",
        "cached": False,
    }
    assert wanted["models"]["models"]["digits"]["release"] == manifests["digits"]["release"]
    assert "contents" not in wanted["models"]["models"]["digits"]


def test_container_runs_the_pinned_image(repository: Path) -> None:
    recipe = subject.desired(host(repository), ["image"])[0]["image"]["recipe"]
    lock = {"24.01": {"recipe": recipe, "id": "sha256:" + "a" * 64, "archive": "sha256:" + "b" * 64}}
    wanted, _ = subject.desired(host(repository, npufleet_lock=lock), ["image", "server"])
    assert wanted["server"]["container"]["image"] == wanted["image"]["id"] == "sha256:" + "a" * 64


def test_variables_are_validated_first(repository: Path) -> None:
    with pytest.raises(Refusal) as refusal:
        subject.desired(host(repository, npufleet_card="RBLN-CA22"), ["engine"])
    assert refusal.value.reasons == [
        "npufleet_card is RBLN-CA22, expected one of RBLN-CA12 for release 24.01. Choose a release for this card."
    ]


def test_models_are_only_read_where_they_matter(repository: Path) -> None:
    wanted, manifests = subject.desired(host(repository.parent / "no-such-repository"), ["engine"])
    assert (list(wanted), manifests) == (["engine"], {})


def test_now_reaches_the_monitoring(repository: Path) -> None:
    variables = host(repository, groups={"npu_hosts": ["npu1"]}, hostvars={"npu1": {}})
    assert subject.desired(variables, ["monitoring"], proof=True)[0]["monitoring"]["proof"] is True
    assert subject.desired(variables, ["monitoring"])[0]["monitoring"]["proof"] is False


def test_reasons_of_all_concerns_come_at_once(repository: Path) -> None:
    row = {**ROW, "driver": {"package": "rebellions", "version": "2.1.0", "form": "rpm"}}
    variables = host(repository, npufleet_release_row=row)
    variables = fleet(**{**dict(variables._raw), "triton_models": [{"name": "faces"}, {"name": "words"}]})
    with pytest.raises(Refusal) as refusal:
        subject.desired(variables, NPU)
    directory = str(repository)
    assert refusal.value.reasons == [
        f"model faces: {directory}/faces/config.pbtxt is missing, expected a config for each model. Add it",
        f"model words: {directory}/words/config.pbtxt is missing, expected a config for each model. Add it",
        "driver 2.1.0 of release 24.01 is a .rpm package, expected .deb or .run. Install it manually and set "
        "rbln_driver_form: present, or choose a release whose driver is one of these",
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"triton_server_shm_size": "plenty"},
            "triton_server_shm_size: plenty is not a size, expected bytes, or a size such as 512m or 1g",
        ),
        (
            {"triton_server_memory": "1.5g"},
            "triton_server_memory: 1.5g is not a size, expected bytes, or a size such as 512m or 1g",
        ),
        (
            {"triton_server_ulimits": ["memlock"]},
            "triton_server_ulimits has memlock, expected limit:soft:hard such as memlock:-1:-1",
        ),
        ({"npufleet_npus": "two"}, "npufleet_npus is two, expected a whole number. Correct it."),
        ({"npufleet_npus": -1}, "npufleet_npus is -1, expected a whole number from 1 to 256. Correct it."),
    ],
)
def test_value_that_is_no_number_is_refused(repository: Path, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refusal) as refusal:
        subject.desired(host(repository, **change), NPU)
    assert refusal.value.reasons == [reason]


def test_unknown_concern_is_refused(repository: Path) -> None:
    with pytest.raises(Refusal) as refusal:
        subject.desired(host(repository), ["drivers", "image", "cards"])
    assert refusal.value.reasons == [f"concerns contains cards, drivers, expected some of {', '.join(CONCERNS)}"]


# Variables are templated when they are read


def test_templated_reads_once_and_leaves_the_rest() -> None:
    read: list[Any] = []
    raw: dict[str, Any] = {"a": "{{ x }}", "b": "{{ broken }}", "hostvars": object(), "groups": object()}
    variables = subject.Templated(raw, lambda value: read.append(value) or f"<{value}>")
    assert variables["a"] == variables["a"] == "<{{ x }}>"
    assert read == ["{{ x }}"]
    # What is made of it is made of the value
    assert raw["a"] == "<{{ x }}>"
    assert variables["hostvars"] is raw["hostvars"]
    assert variables["groups"] is raw["groups"]
    assert (len(variables), list(variables)) == (4, list(raw))
    assert "c" not in variables
    with pytest.raises(KeyError):
        variables["c"]


def test_rows_are_those_that_the_default_of_the_variable_says() -> None:
    mine = {"mine": ROW, "24.01": {**ROW, "cards": ["RBLN-CA99"]}}
    given = {**action.role_defaults(), "npufleet_extra_releases": mine, "role_path": str(ROOT / "roles/common")}
    made = Templar(DataLoader(), variables=given).template(given[subject.ROWS])
    assert subject.rows(given) == made
    assert (made["mine"], made["24.01"]["cards"], len(made) > 5) == (ROW, ["RBLN-CA99"], True)
