# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A linter for the models of a Triton repository. It runs on the controller.

The linter checks a model as Triton will serve it: with the files that the inventory adds, and with the config fields that follow
from the record of the compiled file. `check` is for one model. `ensemble.check` is for all models together.
"""

from __future__ import annotations

from typing import List

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import config, data, environment, layout, names
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import Finding
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import Model


def check(model: Model) -> List[Finding]:
    """Return the findings about one model. The rules of config.py come first, because they complete the config."""
    rules = (config.check, names.check, environment.check, data.check, layout.check)
    return [finding for rule in rules for finding in rule(model)]
