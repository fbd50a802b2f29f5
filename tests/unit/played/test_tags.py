"""Tags that select no step of a playbook end the run before any host is queried. Real playbooks on simulated hosts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers import ROOT
from stage import MODEL, PLAYBOOKS, Run, run

VERDICTS = ("check.yml", "preflight.yml", "status.yml")
SITE_TAGS = "balancer, check, driver, engine, image, models, monitoring, server"
OWN_TASKS = """---
- name: Change the models
  ansible.builtin.import_playbook: {playbooks}/models.yml
- name: Change something else
  hosts: npu_hosts
  gather_facts: false
  tasks:
    - name: Include the tasks of this project
      ansible.builtin.include_tasks: {{file: tasks.yml, apply: {{tags: [always]}}}}
      tags: [always]
"""
WRAPPER = """---
- name: Change the models
  ansible.builtin.import_playbook: {playbooks}/models.yml
"""
TAGGED_WRAPPER = WRAPPER + "  tags: [models]\n"


def go(directory: Path, playbook: str, *options: str) -> Run:
    more, plan = PLAYBOOKS.get(playbook, ((), MODEL))
    return run(directory, playbook, {"npu-1": {"plan": plan}}, *more, *options)


def own_playbook(directory: Path, text: str) -> str:
    """Write a playbook of another project, and return its path."""
    (directory / "tasks.yml").write_text("---\n- name: Report\n  ansible.builtin.debug: {msg: own task}\n")
    (directory / "own.yml").write_text(text.format(playbooks=ROOT / "playbooks"))
    return str(directory / "own.yml")


@pytest.mark.parametrize("playbook", sorted({*PLAYBOOKS, "report.yml"} - {*VERDICTS, "upgrade.yml"}))
def test_unknown_tag_ends_the_run(tmp_path: Path, playbook: str) -> None:
    ran = go(tmp_path, playbook, "--tags", "unknown")
    expected = f"its tags {SITE_TAGS}" if playbook == "site.yml" else "no tags, because it has none"
    assert ran.code != 0, ran.output
    assert f"The command line has --tags unknown, which selects no step of {playbook}, expected {expected}. " in ran.words
    assert ran.calls == []


@pytest.mark.parametrize(
    ("playbook", "options", "found"),
    [
        ("models.yml", ("--tags", "models"), "--tags models"),
        ("models.yml", ("--tags", "always"), "--tags always"),
        ("models.yml", ("--tags", "tagged"), "--tags tagged"),
        ("models.yml", ("--skip-tags", "untagged"), "--skip-tags untagged"),
        ("site.yml", ("--tags", "always"), "--tags always"),
        # A misspelled name beside a correct one
        ("site.yml", ("--tags", "driver,model"), "--tags model"),
        ("site.yml", ("--tags", "driver", "--skip-tags", "driver"), "--tags driver --skip-tags driver"),
        ("site.yml", ("--skip-tags", "all"), "--skip-tags all"),
    ],
)
def test_tags_that_select_no_step_are_named(tmp_path: Path, playbook: str, options: tuple[str, ...], found: str) -> None:
    ran = go(tmp_path, playbook, *options)
    assert ran.code != 0, ran.output
    assert f"The command line has {found}, which selects no step of {playbook}, expected " in ran.words, ran.output
    assert ran.calls == []


@pytest.mark.parametrize("playbook", ["models.yml", "site.yml"])
def test_skipping_all_tagged_steps_is_refused_like_skipping_always(tmp_path: Path, playbook: str) -> None:
    ran = go(tmp_path, playbook, "--skip-tags", "tagged")
    assert ran.code != 0, ran.output
    assert "The command line has --skip-tags tagged, expected none" in ran.words
    assert ran.calls == []


@pytest.mark.parametrize(
    ("playbook", "options"),
    [
        ("models.yml", ("--tags", "all")),
        ("models.yml", ("--tags", "untagged")),
        ("models.yml", ("--skip-tags", "unknown")),
        ("site.yml", ("--tags", "models,always")),
        ("site.yml", ("--tags", "tagged")),
        ("upgrade.yml", ("--tags", "models")),
    ],
)
def test_tags_that_select_steps_are_accepted(tmp_path: Path, playbook: str, options: tuple[str, ...]) -> None:
    ran = go(tmp_path, playbook, *options)
    assert "selects no step" not in ran.words
    assert ran.calls, ran.output


@pytest.mark.parametrize("playbook", VERDICTS)
def test_tags_do_not_matter_if_every_step_runs_always(tmp_path: Path, playbook: str) -> None:
    ran = go(tmp_path, playbook, "--tags", "models")
    assert ran.code == 0, ran.output
    assert ran.calls


def test_effects_of_an_upgrade_can_be_shown_with_the_tags_of_site(tmp_path: Path) -> None:
    ran = run(tmp_path, "upgrade.yml", {"npu-1": {"plan": MODEL}}, "-e", "upgrade_to=26.07-sdk0.9", "--tags", "image")
    assert "selects no step" not in ran.words
    assert ran.calls, ran.output


@pytest.mark.parametrize("option", ["--list-tags", "--list-tasks", "--syntax-check"])
def test_listing_is_not_refused(tmp_path: Path, option: str) -> None:
    ran = go(tmp_path, "models.yml", "--tags", "models", option)
    assert ran.code == 0, ran.output


def test_playbook_that_only_imports_is_refused_like_the_imported_one(tmp_path: Path) -> None:
    ran = go(tmp_path, own_playbook(tmp_path, WRAPPER), "--tags", "models")
    assert ran.code != 0, ran.output
    assert "which selects no step of own.yml, expected no tags" in ran.words
    assert ran.calls == []


def test_playbook_that_imports_with_a_tag_runs_with_this_tag(tmp_path: Path) -> None:
    ran = go(tmp_path, own_playbook(tmp_path, TAGGED_WRAPPER), "--tags", "models")
    assert ran.code == 0, ran.output
    assert "npu-1 host_state preflight" in ran.calls


def test_playbook_with_own_tasks_may_have_any_tags(tmp_path: Path) -> None:
    """The files that the tasks include may have tags that the run cannot know before."""
    ran = go(tmp_path, own_playbook(tmp_path, OWN_TASKS), "--tags", "mine")
    assert ran.code == 0, ran.output
    assert "own task" in ran.words


def test_first_page_lists_the_tags_of_site() -> None:
    row = re.search(r"^\| `site\.yml` \| .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert row
    assert sorted(re.findall(r"`(\w+)`", row[0].partition("tags")[2])) == SITE_TAGS.split(", ")
