"""tests/docs.py finds wrong descriptions, translations and links; the example inventory is valid."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import variables
from helpers import ROOT, fleet, load_program

docs = load_program("tests/docs.py")

DEFAULTS = 'web_port: 80\nweb_root: "{{ npufleet_root }}/web"\n'
SPECS = """
argument_specs:
  main:
    short_description: Serve
    options:
      web_port: {description: Port of O(web_root)., type: int, default: 80}
      web_root: {description: Files., type: path, default: !unsafe "{{ npufleet_root }}/web"}
"""
MODULE = '''
DOCUMENTATION = r"""
module: web
options:
  name: {type: str, required: true}
  state: {type: str, choices: [on, off], default: "on"}
"""
EXAMPLES = r"""
- name: Serve
"""
RETURN = r"""
status: {type: int}
"""
def main():
    AnsibleModule(argument_spec={
        "name": {"type": "str", "required": True},
        "state": {"type": "str", "choices": ["on", "off"], "default": "on"},
    })
'''.replace("[on, off]", '["on", "off"]')


def role(root: Path, defaults: str = DEFAULTS, specs: str = SPECS, name: str = "web") -> Path:
    """A role of one port and one directory."""
    for path, text in (("defaults/main.yml", defaults), ("meta/argument_specs.yml", specs)):
        (root / "roles" / name / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "roles" / name / path).write_text(text)
    return root / "roles" / name


def test_this_checkout_is_in_order() -> None:
    assert list(docs.problems(ROOT, check=True)) == []


# Variables


def test_role_that_is_described_as_it_is(tmp_path: Path) -> None:
    assert list(docs.role_problems(role(tmp_path))) == []


@pytest.mark.parametrize(
    ("defaults", "words"),
    [
        (DEFAULTS + "web_user: www\n", "web_user is missing"),
        (DEFAULTS.replace("80", "81"), "the default of web_port is 80, expected 81"),
        (DEFAULTS.replace("80", '"80"'), 'the default of web_port is 80, expected "80"'),
        (DEFAULTS.replace("/web", "/www"), "the default of web_root is"),
        ("web_port: 80\n", "web_root is described, but not in"),
    ],
)
def test_default_that_is_described_otherwise(tmp_path: Path, defaults: str, words: str) -> None:
    (problem,) = docs.role_problems(role(tmp_path, defaults))
    assert words in problem


def test_default_that_is_left_out_of_the_description(tmp_path: Path) -> None:
    (problem,) = docs.role_problems(role(tmp_path, specs=SPECS.replace(", default: 80", "")))
    assert "the default of web_port is null, expected 80" in problem


def test_only_the_shared_role_may_ask_for_what_has_no_default(tmp_path: Path) -> None:
    asking = SPECS + "      web_name: {description: Name., type: str}\n"
    assert list(docs.role_problems(role(tmp_path, specs=asking, name="common"))) == []
    assert ["web_name" in problem for problem in docs.role_problems(role(tmp_path, specs=asking))] == [True]
    lying = asking.replace("type: str}", "type: str, default: x}")
    assert ["web_name" in problem for problem in docs.role_problems(role(tmp_path, specs=lying, name="common"))] == [True]


def test_table_is_written_once_and_then_found_good(tmp_path: Path) -> None:
    path = role(tmp_path)
    readme = path / "README.md"
    readme.write_text(f"# web\n\nText.\n\n{docs.BEGIN}\n{docs.END}\n\nMore.\n")
    assert ["out of date" in problem for problem in docs.readme_problems(path, check=True)] == [True]
    assert "web_port" not in readme.read_text()
    assert list(docs.readme_problems(path, check=False)) == []
    text = readme.read_text()
    assert "| `web_port` | int | `80` | Port of `web_root`. |" in text
    assert text.startswith("# web\n\nText.\n") and text.endswith("\n\nMore.\n")
    assert list(docs.readme_problems(path, check=True)) == []


def test_readme_without_a_place_for_the_table(tmp_path: Path) -> None:
    path = role(tmp_path)
    assert ["markers of the generated part are missing" in problem for problem in docs.readme_problems(path, check=False)] == [True]
    (path / "README.md").write_text("# web\n")
    assert ["markers of the generated part are missing" in problem for problem in docs.readme_problems(path, check=False)] == [True]


def test_cells_do_not_break_the_table() -> None:
    options = {
        "a": {"description": ["One C(x|y).", "Two."], "type": "list", "elements": "str", "default": ["b|c"], "choices": ["b"]}
    }
    assert list(docs.rows(options)) == ['| `a` | list of str | `["b\\|c"]` | One `x\\|y`. Two. One of `b`. |']


def test_elements_of_a_list_have_rows_of_their_own() -> None:
    options = {
        "a": {
            "description": "A.",
            "type": "list",
            "elements": "dict",
            "options": {"b": {"description": "B.", "type": "str", "required": True}},
        }
    }
    assert list(docs.rows(options))[1] == "| `a[].b` | str | required | B. |"


# Modules


def module(root: Path, text: str) -> list[str]:
    path = root / "web.py"
    path.write_text(text)
    return list(docs.module_problems(path))


def test_options_of_a_fragment_count_as_documented(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    (plugins / "modules").mkdir(parents=True)
    (plugins / "doc_fragments").mkdir()
    shared = (
        'class ModuleDocFragment:\n    DOCUMENTATION = "options: {other: {type: int}}"\n    PORT = "options: {port: {type: int}}"\n'
    )
    (plugins / "doc_fragments/web.py").write_text(shared)
    text = MODULE.replace("options:", "extends_documentation_fragment: [npufleet.triton.web.port]\noptions:", 1)
    assert text != MODULE
    text = text.replace("argument_spec={", 'argument_spec={"port": {"type": "str"}, ', 1)
    assert module(plugins / "modules", text) == [
        "plugins/modules/web.py: option port: documented type is int, argument_spec has str"
    ]


def test_module_that_is_documented_as_it_is(tmp_path: Path) -> None:
    assert module(tmp_path, MODULE) == []


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("  name: {type: str, required: true}\n", "", "option name is not documented"),
        ('        "name": {"type": "str", "required": True},\n', "", "option name is documented, argument_spec does not have it"),
        ('"required": True', '"required": False', "documented required is True, argument_spec has False"),
        ('"default": "on"', '"default": "off"', "documented default is on, argument_spec has off"),
        ('"choices": ["on", "off"], ', "", "documented choices is ['on', 'off'], argument_spec has None"),
        ('"type": "str", "required"', '"type": "int", "required"', "documented type is str, argument_spec has int"),
        ("RETURN = ", "RETURNED = ", "RETURN is missing"),
        ("EXAMPLES = ", "EXAMPLE = ", "EXAMPLES is missing"),
        ("argument_spec={", "argument_spec=dict(spec) or {", "the argument_spec is not a dictionary"),
    ],
)
def test_module_that_is_documented_otherwise(tmp_path: Path, before: str, after: str, words: str) -> None:
    assert before in MODULE
    (problem,) = module(tmp_path, MODULE.replace(before, after, 1))
    assert words in problem


# Documents

ENGLISH = "# a\n\n## b\n\n```sh\nmake x\n# no heading\n```\n\n1. c\n\n   ```sh\n   make y\n   ```\n\n## d\n"
KOREAN = ENGLISH.replace("## b", "## 나").replace("1. c", "1. 다")


def translated(root: Path, second: str) -> list[str]:
    (root / "README.md").write_text(ENGLISH)
    (root / "README.ko.md").write_text(second)
    return list(docs.translation_problems(root))


def test_translation_that_is_built_alike(tmp_path: Path) -> None:
    assert translated(tmp_path, KOREAN) == []


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("## d", "### d", "headings are # ## ###, expected # ## ## of README.md"),
        ("\n## d\n", "", "headings are # ##, expected # ## ## of README.md"),
        ("## 나", "## `b` 나", "the code in the heading `b` 나 is not that of README.md: b"),
        ("make x", "make z", "code block 1 is not that of README.md"),
        ("make y", "make z", "code block 2 is not that of README.md"),
        ("   ```sh\n   make y\n   ```\n", "", "code block 2 is not that of README.md"),
    ],
)
def test_translation_that_is_not(tmp_path: Path, before: str, after: str, words: str) -> None:
    (problem,) = translated(tmp_path, KOREAN.replace(before, after))
    assert words in problem


def test_code_blocks_are_copied_to_the_translation(tmp_path: Path) -> None:
    assert translated(tmp_path, KOREAN.replace("make x", "make z")) != []
    assert list(docs.translation_problems(tmp_path, check=False)) == []
    assert (tmp_path / "README.ko.md").read_text() == KOREAN


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("# E\n\n## F\n[b](../README.md) [c](c.md) [d](https://example.com/d#d) [e](#e) [f](a.md#f)")
    (tmp_path / "README.md").write_text("[a](docs/a.md#g) [z](docs/z.md) [h](#h)")
    assert list(docs.link_problems(tmp_path)) == [
        "README.md: a link leads to docs/a.md#g, a heading that does not exist",
        "README.md: a link leads to docs/z.md, which does not exist",
        "README.md: a link leads to #h, a heading that does not exist",
        "docs/a.md: a link leads to c.md, which does not exist",
    ]


# The example inventory


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """inventories/example as Ansible reads it."""
    command = [str(Path(sys.executable).parent / "ansible-inventory"), "-i", str(ROOT / "inventories/example"), "--list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "WARNING" not in done.stderr
    return json.loads(done.stdout)


def test_every_host_of_the_example_can_be_wanted(example: dict[str, Any]) -> None:
    rows = yaml.safe_load((ROOT / "files/releases.yml").read_text())["npufleet_releases"]
    hosts = example["npu_hosts"]["hosts"]
    assert len(hosts) > 1
    for host in hosts:
        given = example["_meta"]["hostvars"][host]
        row = rows[given["rbln_release"]]
        seen = fleet(**given, inventory_hostname=host, npufleet_release_rows=rows, npufleet_release_row=row)
        wanted, _ = variables.desired(seen, ["driver", "engine", "image"])
        assert (wanted["driver"]["version"], wanted["driver"]["npus"]) == (row["driver"]["version"], given["npufleet_npus"])
        fitting = given["npufleet_card"].removeprefix("RBLN-") + "/" + row["sdk"]["shape"]
        assert all(fitting in model["artefacts"] for model in given["triton_models"]), host


def test_the_example_keeps_no_secret(example: dict[str, Any]) -> None:
    secrets = {
        name: value for hostvar in example["_meta"]["hostvars"].values() for name, value in hostvar.items() if "password" in name
    }
    assert len(secrets) == 2
    assert [name for name, value in secrets.items() if not value.startswith("{{ vault_")] == []


def test_the_example_names_only_variables_that_exist(example: dict[str, Any]) -> None:
    known = {name for path in (ROOT / "roles").iterdir() for entry in docs.entry_points(path).values() for name in entry["options"]}
    used = {name for hostvar in example["_meta"]["hostvars"].values() for name in hostvar}
    assert {name for name in used - known if not name.startswith("ansible_")} == set()
