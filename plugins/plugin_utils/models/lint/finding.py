"""What a rule finds, and the release that it was found for."""

from __future__ import annotations

import os
from functools import cache
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.tokens import printable
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.tree import Problem
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION, yaml_of

ERROR = "error"
WARNING = "warning"
# What Triton does, as the end of a sentence that begins with its name
REFUSES = "refuses the model"
REFUSES_TEXT = "refuses the whole file"
IGNORES = "passes it over"
TAKES = "loads the model with it"
HANGS_OLD = "before 25.08 waits for ever and its ports never open, later it refuses the model"
HANGS = "waits for ever and its ports never open"
ENDS = "ends, with every model that it serves"
LOADS_NOTHING = "loads no model at all when it starts, but in explicit mode"


# What the fleet's store does, which copies a model to the hosts
STORE_REFUSES = "refuses the model"
STORE_LEAVES_OUT = "leaves it out"


class Finding(NamedTuple):
    """One thing that is wrong: where, what was found, what is wanted, what to do.

    `triton` and `store` are what Triton and the fleet's store do with it as it is; "" for what is no matter of theirs.
    """

    model: str
    file: str
    line: Optional[int]
    field: str
    found: str
    wanted: str
    do: str
    severity: str
    rule: str
    triton: str = REFUSES
    store: str = ""

    def sentence(self) -> str:
        """The finding as one line that can be printed anywhere."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        field = f"{self.field}: " if self.field else ""
        line = f"{place}: {field}found {self.found}, wanted {self.wanted}: {self.do}"
        does = [f"Triton {self.triton}"] * bool(self.triton) + [f"the fleet's store {self.store}"] * bool(self.store)
        line += f"; as it is, {', and '.join(does)}" if does else ""
        return printable(line)


class Row(NamedTuple):
    """The release that the models are for; without one, every field of the newest schema is known."""

    name: str
    triton: str
    # Why nobody upstream vouches for it; "" for one that its vendor names
    untested: str = ""
    # The Python of the image, such as 3.10; "" for any
    python: str = ""

    def remark(self) -> str:
        """What there is to tell of the release itself; "" for nothing."""
        return f"release {self.name} is untested: {self.untested}" if self.untested else ""


def row_of(name: str, facts: Mapping[str, Any]) -> Row:
    """Return a release row of this name for the linter."""
    triton = facts["triton"]
    return Row(name, str(triton["version"]), str(facts.get("untested", "")), str(triton.get("python", "")))


@cache
def release_rows() -> Dict[str, Any]:
    """The release rows of this collection, by name."""
    rows: Dict[str, Any] = yaml_of(os.path.join(COLLECTION, "files/releases.yml"))["npufleet_releases"]
    return rows


def reasons(findings: Sequence[Finding]) -> List[str]:
    """The errors among them, as reasons of a refusal."""
    return [f"model {finding.model}: {finding.sentence()}" for finding in findings if finding.severity == ERROR]


def unsendable(model: str, problems: Sequence[Problem]) -> List[Finding]:
    """Return an error for each name in a model that the store does not copy. Triton may well load the model with it."""
    return [
        Finding(model, problem.path, None, "", problem.found, problem.wanted, problem.do, ERROR, "files", "", STORE_REFUSES)
        for problem in problems
    ]


def listed(values: Any) -> str:
    """Values as a person reads them."""
    return ", ".join(str(value) for value in values) or "none"
