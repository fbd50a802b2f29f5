"""Imported for what it does: makes the checkout importable as ansible_collections.npufleet.triton, as Ansible itself sees it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "collections"))

# Lookups of roles' defaults are found as in a run
from ansible.plugins.loader import init_plugin_loader

init_plugin_loader()
