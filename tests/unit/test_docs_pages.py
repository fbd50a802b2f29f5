"""The pages of docs/: the variables, both languages, and that the names and messages in them exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import registry
from helpers import ROOT
from test_docs import docs, role


def page(root: Path) -> str:
    """The page of all variables of a checkout with two roles."""
    role(root)
    role(root, "", "argument_specs: {main: {short_description: Shared, options: {a: {description: A., type: str}}}}", name="common")
    text = docs.all_tables(root, docs.PAGES["docs/variables.md"])
    return str(text)


def test_page_has_every_variable_once_and_the_shared_ones_first(tmp_path: Path) -> None:
    lines = page(tmp_path).splitlines()
    assert [line for line in lines if line.startswith("#")] == ["## common", "## web"]
    assert "| `a` | str | none | yes | A. |" in lines
    assert "| `web_port` | int | `80` | no | Port of `web_root`. |" in lines
    assert lines.count("|---|---|---|---|---|") == 2


def test_page_that_is_out_of_date(tmp_path: Path) -> None:
    text = page(tmp_path)
    (tmp_path / "docs").mkdir()
    path = tmp_path / "docs/variables.md"
    path.write_text(f"# V\n{docs.BEGIN}\n{docs.END}\n")
    assert ["out of date" in entry for entry in docs.written(tmp_path, "docs/variables.md", text, True)] == [True]
    assert list(docs.written(tmp_path, "docs/variables.md", text, False)) == []
    assert path.read_text() == f"# V\n{text}\n"
    assert list(docs.written(tmp_path, "docs/variables.md", text, True)) == []


def test_pages_of_this_checkout_have_every_default() -> None:
    for name in docs.PAGES:
        listed = {line.split("`")[1] for line in (ROOT / name).read_text().splitlines() if line.startswith("| `")}
        defaults = {entry for path in ROOT.glob("roles/*/defaults/main.yml") for entry in docs.load(path)}
        assert defaults <= listed, defaults - listed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("`web_port` `npufleet.triton.web` `npufleet.triton.site` `playbooks/site.yml` `--tags web`", None),
        ("`web_prot`", "names the variable web_prot, which no role has"),
        ("```sh\nansible-playbook playbooks/sight.yml\n```", "names playbooks/sight.yml, which does not exist"),
        ("`files/none.yml`", "names files/none.yml, which does not exist"),
        ("`npufleet.triton.none`", "names npufleet.triton.none, which is no module, role or playbook"),
        ("`--tags web,none`", "names the tags web,none"),
        ("`inventories/prod/hosts.yml` `/srv/files/x` `/run/web_x.sock`, web_prot in words", None),
    ],
)
def test_names_of_what_is_not_there(tmp_path: Path, text: str, words: str | None) -> None:
    role(tmp_path)
    for name, content in (
        ("playbooks/site.yml", "tags: [web]\n"),
        ("docs/troubleshooting/server.md", text),
        ("docs/other.md", "`web_prot`"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    found = list(docs.name_problems(tmp_path))
    assert len(found) == (1 if words else 0), found
    assert not words or words in found[0]


def test_every_page_that_has_a_korean_one_is_compared(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("# A\n\n## B\n\n```sh\nx\n```\n")
    (tmp_path / "docs/a.ko.md").write_text("# 가\n\n```sh\ny\n```\n")
    (tmp_path / "docs/b.md").write_text("# B\n")
    assert list(docs.translation_problems(tmp_path)) == [
        "docs/a.ko.md: headings are #, expected # ## of docs/a.md",
        "docs/a.ko.md: code block 1 is not that of docs/a.md",
    ]


@pytest.mark.parametrize("name", ["README.md", "README.ko.md"])
def test_first_page_lists_every_playbook_and_role(name: str) -> None:
    rows = re.findall(r"^\| (?:`([\w.]+)`|\[(\w+)\]\(roles/)", (ROOT / name).read_text(), re.MULTILINE)
    assert sorted(playbook for playbook, _role in rows if playbook.endswith(".yml")) == sorted(
        path.name for path in (ROOT / "playbooks").glob("*.yml")
    )
    assert sorted(role for _playbook, role in rows if role) == sorted(path.name for path in (ROOT / "roles").iterdir())


def test_first_page_names_the_supported_cards_and_versions() -> None:
    table = (ROOT / "README.md").read_text().partition("\n## ")[0]
    releases = yaml.safe_load((ROOT / "files/releases.yml").read_text())["npufleet_releases"]
    assert set(re.findall(r"RBLN-\w+", table)) == {card for row in releases.values() for card in row["cards"]}
    oldest, newest = re.findall(r"2\.(\d+)\.0", yaml.safe_load((ROOT / "meta/runtime.yml").read_text())["requires_ansible"])
    cores = [f"2.{minor}" for minor in range(int(oldest), int(newest))]
    assert f"ansible-core {', '.join(cores[:-1])} or {cores[-1]}." in table
    assert "No real card has been tested yet." in table


# Messages of other programs in docs/troubleshooting: the SDK's, Triton's, the engine's, Ansible's
FOREIGN = (
    "Module rebellions not found", "normal", "No module named rebel", "401", "failed to read text proto",
    "failed to load all models", "Connection refused", "/v2/health/ready", "Stub process 'digits_0_0' is not healthy.",
    "Failed to preinitialize Python stub: Python model file not found", "Lack of device memory",
    "Timed out after",
    "This API is restricted", "output tensor shape does not match size of output", "Failed to increase the shared memory pool size",
    "the output has been hidden due to the fact that 'no_log: true' was specified",
    "Missing Authority Key Identifier", "CA cert does not include key usage extension",
    'could not select device driver "cdi"', "unresolvable CDI devices", "connection refused", "no such host", "UNREACHABLE", "x509",
)  # fmt: skip
# What stands in a message at a place that varies
VARYING = r"RBLN-\w+|CA\d\d/[\d.]+|[\d.]+\d|\bnpu\d|\d+|rebellions|\.deb"
VARYING += r"|: found |, wanted | is (?=missing|\d)|, expected |^(?:found|wanted|expected) "
VARYING += r"|\.\.\.|digits_\d_\d| \(|\)|nothing|missing|^(?:driver|engine|monitoring) "


def layer_page(layer: str) -> Path:
    return ROOT / f"docs/troubleshooting/{layer}.md"


def test_every_page_of_symptoms_is_in_the_index() -> None:
    pages = {path.name for path in layer_page("").parent.glob("*.md")}
    assert pages == {name + suffix for name in (*docs.LAYERS, "index") for suffix in (".md", ".ko.md")}


def test_index_lists_each_symptom_with_its_anchor(tmp_path: Path) -> None:
    (tmp_path / "docs/troubleshooting").mkdir(parents=True)
    for layer in docs.LAYERS:
        (tmp_path / f"docs/troubleshooting/{layer}.md").write_text(
            "# Cards\n\n## `found 3, wanted /dev/rsd0` (inspect)\n\n```sh\n# x\n```\n"
        )
    lines = docs.symptoms(tmp_path, ".md").splitlines()
    assert "## [Cards](driver.md)" in lines
    assert "- [`found 3, wanted /dev/rsd0` (inspect)](driver.md#found-3-wanted-devrsd0-inspect)" in lines
    assert sum(line.startswith("- ") for line in lines) == len(docs.LAYERS)


def test_anchors_are_those_of_github() -> None:
    text = "# A_b `c.d`\n\n## [E](f.md) g\n\n## 누가 무엇을?\n\n## E g\n"
    assert docs.anchors(text) == ["a_b-cd", "e-g", "누가-무엇을", "e-g-1"]


def messages_of_tables(text: str) -> list[str]:
    """Return the code in the first column of each table whose head starts with Message."""
    tables = re.findall(r"^\| (?:Message|메시지) \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [message for table in tables for row in table.splitlines() for message in docs.CODE.findall(row.split(" | ")[0])]


@pytest.fixture(scope="module")
def code() -> str:
    """The text of everything that may write a message, on one line."""
    patterns = ("plugins/**/*.py", "roles/*/tasks/*.yml", "playbooks/**/*.yml", "files/backends/**/*.py")
    return " ".join(" ".join(path.read_text() for pattern in patterns for path in ROOT.glob(pattern)).split())


def unknown_parts(message: str, code: str) -> list[str]:
    """Return the parts of a message that the code does not contain, between those that vary."""
    pieces = [piece.strip(" ,;:") for piece in re.split(VARYING, message)]
    return [piece for piece in pieces if piece and piece not in code and message not in FOREIGN]


def test_symptoms_are_messages_of_the_code(code: str) -> None:
    headings = [title for layer in docs.LAYERS for _level, title in docs.headings(layer_page(layer).read_text())[1:]]
    assert 25 <= len(headings) <= 80
    messages = [message for title in headings for message in docs.CODE.findall(title)]
    assert len([message for message in messages if message not in FOREIGN]) > 25
    assert {message: parts for message in messages if (parts := unknown_parts(message, code))} == {}


@pytest.mark.parametrize("suffix", [".md", ".ko.md"])
def test_messages_in_tables_are_messages_of_the_code(code: str, suffix: str) -> None:
    pages = [*ROOT.glob("docs/troubleshooting/*.md"), *ROOT.glob("docs/runbooks/*.md"), *ROOT.glob("docs/support*.md")]
    texts = [path.read_text() for path in pages if path.name.endswith(".ko.md") == (suffix == ".ko.md")]
    messages = [message for text in texts for message in messages_of_tables(text)]
    assert len(messages) > 20
    assert {message: parts for message in messages if (parts := unknown_parts(message, code))} == {}


def test_messages_of_a_table_are_found() -> None:
    text = "| Message | Reason |\n|---|---|\n| `a`, or `b` | `c` |\n\n| What | Why |\n|---|---|\n| `d` | e |\n"
    assert messages_of_tables(text) == ["a", "b"]
    assert unknown_parts("found 3 cards, of none", "found cards") == ["cards, of none"]


@pytest.mark.parametrize("page", ["security.md", "security.ko.md"])
def test_security_tells_the_bulletins_of_every_row(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    table = re.findall(r"^\| (\d\d\.\d\d\S*) \| ([\d.]+) \| `\.(\w+)`[^|]* \| ([^|]*) \|", text, re.MULTILINE)
    told = {row: (triton, form, re.findall(r"\d{4}", bulletins)) for row, triton, form, bulletins in table}
    assert told == {
        name: (row["triton"]["version"], row["driver"]["form"], list(row["vulnerabilities"]["bulletins"]))
        for name, row in yaml.safe_load((ROOT / "files/releases.yml").read_text())["npufleet_releases"].items()
    }


@pytest.mark.parametrize("page", ["concepts.md", "concepts.ko.md"])
def test_concepts_list_every_concern_with_its_role(page: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (?:\[(\w+)\]|\S+ .*)[^|]*\|$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    assert rows == [(name, concern.role) for name, concern in registry.CONCERNS.items()]


@pytest.mark.parametrize("page", ["glossary.md", "glossary.ko.md"])
def test_glossary_names_every_concern(page: str) -> None:
    (names,) = re.findall(r"^\| concern\b.*: ([\w, ]+)\. \|$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    assert names.split(", ") == list(registry.CONCERNS)
