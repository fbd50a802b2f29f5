#!/usr/bin/env python3
"""Compare the documents with the code: variables, modules, both languages, links, and the names that documents mention.

Write the tables of variables, the list of symptoms and the code blocks of Korean pages. With --check, write nothing.
Print one line for each problem that needs an editor, and exit with 1 if there is a problem.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
BEGIN = "<!-- variables: written by tests/docs.py out of meta/argument_specs.yml -->"
END = "<!-- end of variables -->"
BEGIN_SYMPTOMS = "<!-- symptoms: written by tests/docs.py out of the headings of the pages -->"
END_SYMPTOMS = "<!-- end of symptoms -->"
# The pages of docs/troubleshooting, in the order in which a host is built
LAYERS = ("driver", "engine", "image", "models", "server", "inference", "monitoring", "controller")
# The tables of all roles, and the heads of their columns
PAGES = {
    "docs/variables.md": "| Variable | Type | Default | Required | What it is |",
    "docs/variables.ko.md": "| 변수 | 형식 | 기본값 | 필수 | 설명 |",
}
# Suffix of Korean pages
KOREAN = ".ko.md"
# The role whose variables may have no default, because a site has to set them
SHARED = "common"
# Entry points of a role without a title in the tables
WHOLE_ROLE = ("main", "variables")
# Facts of an option that are in a module's documentation and in its argument_spec
FACTS = ("type", "default", "required", "choices", "elements")
# The most characters of a default in a table
LONG = 90
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
# A code block of Markdown
FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
# Directories of files that documents name, and names of files that only a site has
PLACES = "docs|files|inventories|lab|meta|model_repository|molecule|playbooks|plugins|roles|tests"
SITES = ("inventories/prod", "model_repository/resnet50", "files/checks/resnet50", "files/golden/resnet50")
# Names that look like variables of a role, but are parameters of a served model or a group
NO_VARIABLES = {"npufleet_release", "npufleet_source", "monitoring_hosts"}
# Documents whose names are checked
NAMING = ("README", "docs/security", "docs/support", "docs/troubleshooting")


# libyaml is faster, but optional.
PLAIN = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Loader(PLAIN):  # type: ignore[misc, valid-type]
    """A loader of YAML that reads `!unsafe`, which marks text that is no template, as plain text."""


Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))


def load(path: Path) -> Any:
    """Return the data of a YAML file, or {} if the file does not exist."""
    return (yaml.load(path.read_text(), Loader) or {}) if path.exists() else {}


# Variables of a role


def entry_points(role: Path) -> dict[str, dict[str, Any]]:
    """Return the entry points of a role's argument_specs.yml."""
    return load(role / "meta/argument_specs.yml").get("argument_specs", {})


def role_problems(role: Path) -> Iterator[str]:
    """Yield the differences between argument_specs.yml and defaults/main.yml of a role."""
    defaults = load(role / "defaults/main.yml")
    options = {name: option for entry in entry_points(role).values() for name, option in entry.get("options", {}).items()}
    where = f"roles/{role.name}/meta/argument_specs.yml"
    for name in sorted(defaults.keys() - options.keys()):
        yield f"{where}: {name} is missing, expected a description of this default"
    for name, option in sorted(options.items()):
        if name not in defaults:
            if "default" in option or role.name != SHARED:
                yield f"{where}: {name} is described, but not in defaults/main.yml"
        elif "default" not in option or option["default"] != defaults[name]:
            documented = json.dumps(option.get("default"))
            yield f"{where}: the default of {name} is {documented}, expected {json.dumps(defaults[name])} of defaults/main.yml"


def rows(options: Mapping[str, Any], prefix: str = "", defaults: str = "") -> Iterator[str]:
    """Yield the table rows of options, including suboptions.

    The table of all roles has a column `Required`. For this table, `defaults` is the path of the role's defaults, otherwise "".
    """
    for name, option in options.items():
        kind = "list of " + option["elements"] if "elements" in option else option["type"]
        text = option["description"] if isinstance(option["description"], str) else " ".join(option["description"])
        if "choices" in option:
            text += " One of {}.".format(", ".join(f"`{choice}`" for choice in option["choices"]))
        required = option.get("required") or ("default" not in option and not prefix)
        default = [shown({**option, "required": False}, defaults), "yes" if required else "no"] if defaults else [shown(option)]
        cells = [f"`{prefix}{name}`", kind, *default, re.sub(r"\b[COVM]\(((?:[^()]|\([^()]*\))*)\)", r"`\1`", text)]
        yield "| {} |".format(" | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells))
        yield from rows(option.get("options", {}), f"{prefix}{name}{'[]' if 'elements' in option else ''}.", defaults)


def shown(option: Mapping[str, Any], defaults: str = "defaults/main.yml") -> str:
    """Return a default as text of a table. For a long default, return a link to the file `defaults`."""
    if "default" not in option:
        return "required" if option.get("required") else "none"
    value = option["default"]
    text = value if isinstance(value, str) and value else json.dumps(value)
    return f"`{text}`" if len(text) <= LONG else f"[see there]({defaults})"


def tables(role: Path) -> str:
    """Return the variables of a role that a site may set as Markdown, between the markers."""
    lines = [BEGIN]
    for name, entry in entry_points(role).items():
        if entry.get("options") and name in WHOLE_ROLE:
            lines += ["", "| Variable | Type | Default | What it is |", "|---|---|---|---|", *rows(entry["options"])]
    return "\n".join([*lines, "", END])


def all_tables(root: Path, head: str) -> str:
    """Return all variables of all roles as Markdown, between the markers. Shared variables come first."""
    lines = [BEGIN]
    for role in sorted((root / "roles").iterdir(), key=lambda path: (path.name != SHARED, path.name)):
        defaults = f"../roles/{role.name}/defaults/main.yml"
        for name, entry in entry_points(role).items():
            if entry.get("options"):
                title = f"## {role.name}" if name in WHOLE_ROLE else f"### {role.name}, {name}"
                rule = "|" + "---|" * head.count(" | ") + "---|"
                lines += [
                    "",
                    title,
                    "",
                    entry["short_description"] + ".",
                    "",
                    head,
                    rule,
                    *rows(entry["options"], defaults=defaults),
                ]
    return "\n".join([*lines, "", END])


def readme_problems(role: Path, check: bool) -> Iterator[str]:
    """Update the tables of a role's README. With `check`, only report that they are out of date."""
    yield from written(role.parents[1], f"roles/{role.name}/README.md", tables(role), check)


def written(root: Path, where: str, text: str, check: bool) -> Iterator[str]:
    """Replace the generated part of a document, whose markers are the first and the last line of `text`.

    With `check`, only report that the part is out of date.
    """
    path = root / where
    before = read(path)
    begin, end = text.splitlines()[0], text.splitlines()[-1]
    pattern = re.compile(re.escape(begin) + ".*" + re.escape(end), re.DOTALL)
    after = pattern.sub(lambda _match: text, before)
    if not pattern.search(before):
        yield f"{where}: the markers of the generated part are missing, expected the lines {begin} and {end}"
    elif after != before and check:
        yield f"{where}: the generated part is out of date: run tests/docs.py"
    elif after != before:
        path.write_text(after)


# Modules


def fragment_options(plugins: Path, name: str) -> Mapping[str, Any]:
    """Return the options of a documentation fragment of this collection, such as npufleet.triton.project.balancer."""
    _namespace, _collection, file, *part = name.split(".")
    tree = ast.parse((plugins / f"doc_fragments/{file}.py").read_text())
    texts = [
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == (part[0].upper() if part else "DOCUMENTATION")
    ]
    return yaml.load(texts[0], PLAIN).get("options") or {}


def module_problems(path: Path) -> Iterator[str]:
    """Yield the differences between a module's DOCUMENTATION and its argument_spec, and missing parts."""
    where = f"plugins/modules/{path.name}"
    tree = ast.parse(path.read_text(), str(path))
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)]
    texts = {getattr(entry.targets[0], "id", ""): entry.value.value for entry in assigned}
    texts = {name: yaml.load(texts.get(name, ""), PLAIN) for name in ("DOCUMENTATION", "EXAMPLES", "RETURN")}
    yield from (f"{where}: {name} is missing" for name, text in texts.items() if not text)
    documented = dict((texts["DOCUMENTATION"] or {}).get("options") or {})
    for fragment in (texts["DOCUMENTATION"] or {}).get("extends_documentation_fragment", []):
        documented.update(fragment_options(path.parents[1], fragment))
    named = [node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "OPTIONS"]
    specs = named or [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "argument_spec"]
    if len(specs) != 1 or not isinstance(specs[0], ast.Dict):
        yield f"{where}: the argument_spec is not a dictionary, expected one to compare with DOCUMENTATION"
        return
    spec = ast.literal_eval(specs[0])
    for name in sorted(spec.keys() ^ documented.keys()):
        yield f"{where}: option {name} is {'not documented' if name in spec else 'documented, argument_spec does not have it'}"
    for name in sorted(spec.keys() & documented.keys()):
        for fact in FACTS:
            text, actual = documented[name].get(fact), spec[name].get(fact)
            if text != actual:
                yield f"{where}: option {name}: documented {fact} is {text}, argument_spec has {actual}"


# Documents


def structure(text: str) -> tuple[list[str], list[str]]:
    """Return (levels of the headings such as `##`, texts of the fenced code blocks) of a Markdown document."""
    return [level for level, _title in headings(text)], [block[0] for block in FENCED.finditer(text)]


def headings(text: str) -> list[tuple[str, str]]:
    """Return (level such as `##`, title) of each heading of a Markdown document."""
    return re.findall(r"^(#+) (.+)$", FENCED.sub("", text), re.MULTILINE)


def anchors(text: str) -> list[str]:
    """Return the anchor of each heading, as GitHub makes it."""
    names: list[str] = []
    for _level, title in headings(text):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)).lower().replace(" ", "-")
        names.append(f"{name}-{names.count(name)}" if name in names else name)
    return names


def symptoms(root: Path, suffix: str) -> str:
    """Return all symptoms of docs/troubleshooting as Markdown lists, one for each layer, between the markers."""
    lines = [BEGIN_SYMPTOMS]
    for layer in LAYERS:
        name = layer + suffix
        text = read(root / "docs/troubleshooting" / name)
        (_level, title), *found = headings(text)
        lines += ["", f"## [{title}]({name})", ""]
        lines += [f"- [{symptom}]({name}#{anchor})" for (_, symptom), anchor in zip(found, anchors(text)[1:])]
    return "\n".join([*lines, "", END_SYMPTOMS])


def documents(root: Path) -> list[Path]:
    """Return the paths of all documents."""
    return sorted([*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("roles/*/README.md")])


def translation_problems(root: Path, check: bool = True) -> Iterator[str]:
    """Copy the code blocks of each document to its Korean page. With `check`, only report the blocks that differ.

    Headings are only compared, because their titles are translated.
    """
    for path in documents(root):
        other = path.with_name(path.name.replace(".md", KOREAN))
        if path.name.endswith(KOREAN) or not other.exists():
            continue
        first, second = path.relative_to(root).as_posix(), other.relative_to(root).as_posix()
        levels, blocks = structure(path.read_text())
        other_levels, other_blocks = structure(other.read_text())
        if not check and len(blocks) == len(other_blocks) and blocks != other_blocks:
            rest = iter(blocks)
            other.write_text(FENCED.sub(lambda _block, rest=rest: next(rest), other.read_text()))
            other_blocks = blocks
        for (_, title), (_, other_title) in zip(headings(path.read_text()), headings(other.read_text())):
            if sorted(CODE.findall(title)) != sorted(CODE.findall(other_title)):
                yield f"{second}: the code in the heading {other_title} is not that of {first}: {title}"
        if levels != other_levels:
            yield f"{second}: headings are {' '.join(other_levels)}, expected {' '.join(levels)} of {first}"
        for number in range(max(len(blocks), len(other_blocks))):
            if blocks[number : number + 1] != other_blocks[number : number + 1]:
                yield f"{second}: code block {number + 1} is not that of {first}"


def link_problems(root: Path) -> Iterator[str]:
    """Yield the relative links whose file or heading does not exist."""
    for path in documents(root):
        for target, anchor in re.findall(r"\]\(([^)\s#]*)#?([^)\s]*)[^)]*\)", FENCED.sub("", path.read_text())):
            if re.match(r"[a-z]+:", target):
                continue
            other = path.parent / target if target else path
            if not other.exists():
                yield f"{path.relative_to(root)}: a link leads to {target}, which does not exist"
            elif anchor and other.suffix == ".md" and anchor not in anchors(other.read_text()):
                yield f"{path.relative_to(root)}: a link leads to {target}#{anchor}, a heading that does not exist"


def code(text: str) -> str:
    """Return all code in a document: the code blocks, and the code inside of sentences."""
    return "\n".join([*structure(text)[1], *CODE.findall(text)])


def name_problems(root: Path) -> Iterator[str]:
    """Yield the playbooks, tags, variables, modules, roles and files that a document names and that do not exist."""
    roles = [path for path in (root / "roles").iterdir() if path.is_dir()]
    variables = {name for role in roles for entry in entry_points(role).values() for name in entry.get("options", {})}
    prefixes = "|".join(["npufleet", *(role.name for role in roles)])
    own = {role.name for role in roles} | {path.stem for path in root.glob("plugins/modules/*.py")}
    called = own | {path.stem for path in root.glob("playbooks/*.yml")}
    tags = set(re.findall(r"[a-z]+", " ".join(re.findall(r"tags: \[([^]]*)\]", "".join(read(root / "playbooks/site.yml"))))))
    for path in documents(root):
        where, words = path.relative_to(root).as_posix(), code(path.read_text())
        if not where.startswith(NAMING):
            continue
        for name in sorted(
            set(re.findall(rf"(?<![\w./-])((?:{prefixes})_[a-z0-9_]*[a-z0-9])(?![\w./-])", words)) - variables - own - NO_VARIABLES
        ):
            yield f"{where}: names the variable {name}, which no role has"
        for name in sorted(set(re.findall(r"npufleet\.triton\.(\w+)", words)) - called):
            yield f"{where}: names npufleet.triton.{name}, which is no module, role or playbook"
        for name in sorted(set(re.findall(rf"(?<![\w./-])((?:{PLACES})/[\w./-]*[\w-])(?![\w<*])", words))):
            if not name.startswith(SITES) and not (root / name).exists():
                yield f"{where}: names {name}, which does not exist"
        for name in sorted(set(re.findall(r"--tags ([\w,]+)", words))):
            if set(name.split(",")) - tags:
                yield f"{where}: names the tags {name}, playbooks/site.yml has {', '.join(sorted(tags))}"


def read(path: Path) -> str:
    """Return the content of a text file, or "" if the file does not exist."""
    return path.read_text() if path.exists() else ""


def problems(root: Path, check: bool) -> Iterator[str]:
    """Yield everything that is out of date in a checkout. Without `check`, write the generated parts first."""
    for role in sorted(path for path in (root / "roles").iterdir() if path.is_dir()):
        yield from role_problems(role)
        yield from readme_problems(role, check)
    for page, head in PAGES.items():
        yield from written(root, page, all_tables(root, head), check)
    for suffix in (".md", KOREAN):
        yield from written(root, f"docs/troubleshooting/index{suffix}", symptoms(root, suffix), check)
    for module in sorted((root / "plugins/modules").glob("*.py")):
        yield from module_problems(module)
    yield from translation_problems(root, check)
    yield from link_problems(root)
    yield from name_problems(root)


def main() -> int:
    """Print the problems. Return 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    entries = list(problems(ROOT, parser.parse_args().check))
    print("\n".join(f"docs: {entry}" for entry in entries), end="\n" if entries else "")
    return 1 if entries else 0


if __name__ == "__main__":
    sys.exit(main())
