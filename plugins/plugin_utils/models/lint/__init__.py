"""What is wrong with the models of a Triton repository, told before a server reads it. Controller only.

A model is what will be served: the files of its directory with those that the inventory adds, and its config with what the
compiled file's record fills in. `check` is for one model, `check_together` for what several have to agree on.
"""

from __future__ import annotations

from typing import Collection, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import (
    config,
    data,
    ensemble,
    environment,
    layout,
    names,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import Finding, Row
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import Model


def check(model: Model, row: Optional[Row] = None) -> List[Finding]:
    """Findings of one model. Fills in its config from the compiled file's record."""
    rules = (names.check, environment.check, data.check, layout.check)
    return [*config.check(model, row), *(finding for rule in rules for finding in rule(model))]


def check_together(
    models: Mapping[str, Model], unread: Collection[str], place: ensemble.Place, refused: Collection[str] = ()
) -> List[Finding]:
    """Findings of ensembles and their steps.

    `unread` are models that are there and could not be read, `refused` those with errors.
    """
    return list(ensemble.check(models, unread, place, set(refused)))
