"""What a rule finds, and the release that it was found for."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence

ERROR = "error"
WARNING = "warning"


class Finding(NamedTuple):
    """One thing that is wrong: where, what was found, what is wanted, what to do."""

    model: str
    file: str
    line: Optional[int]
    field: str
    found: str
    wanted: str
    do: str
    severity: str
    rule: str

    def sentence(self) -> str:
        """The finding as one line."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        field = f"{self.field}: " if self.field else ""
        return f"{place}: {field}found {self.found}, wanted {self.wanted}: {self.do}"


class Row(NamedTuple):
    """The release that the models are for; without one, every field of the newest schema is known."""

    name: str
    triton: str


def reasons(findings: Sequence[Finding]) -> List[str]:
    """The errors among them, as reasons of a refusal."""
    return [f"model {one.model}: {one.sentence()}" for one in findings if one.severity == ERROR]


def listed(values: Any) -> str:
    """Values as a person reads them."""
    return ", ".join(str(one) for one in values) or "none"
