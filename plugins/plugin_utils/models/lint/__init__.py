# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A linter for the models of a Triton repository. It runs on the controller.

The linter checks a model as Triton will serve it: with the files that the inventory adds, and with the config fields that follow
from the record of the compiled file. `check` is for one model, `check_together` for ensembles and their steps.
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
    """Return the findings about one model. The rules of config.py come first, because they complete the config."""
    rules = (names.check, environment.check, data.check, layout.check)
    return [*config.check(model, row), *(finding for rule in rules for finding in rule(model))]


def check_together(
    models: Mapping[str, Model], unread: Collection[str], location: ensemble.StepLocation, refused: Collection[str] = ()
) -> List[Finding]:
    """Return the findings about ensembles and their steps.

    `unread` are existing models that could not be read. `refused` are models that Triton refuses because of other findings.
    """
    return list(ensemble.check(models, unread, location, set(refused)))
