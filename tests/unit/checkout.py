"""Imported for what it does: makes the checkout importable as ansible_collections.npufleet.triton, as Ansible itself sees it."""

import sys
from pathlib import Path

from ansible.plugins.loader import init_plugin_loader

COLLECTIONS = str(Path(__file__).resolve().parents[2] / "collections")
sys.path.insert(0, COLLECTIONS)
# Lookups of roles' defaults are found as in a run; this checkout comes before whatever ANSIBLE_CONFIG names
init_plugin_loader([COLLECTIONS])
