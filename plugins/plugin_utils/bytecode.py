"""Imports of this collection find their bytecode again, as Python's own imports do.

Ansible's loader of collections compiles each file in every run, which for these takes a quarter of a second. What is imported after
this file takes less.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from typing import Any, Optional, Sequence

from ansible.utils.collection_loader import AnsibleCollectionConfig

ROOMS = tuple(f"ansible_collections.npufleet.triton.plugins.{room}." for room in ("module_utils", "modules", "plugin_utils"))


class Finder(MetaPathFinder):
    """Finds the files of the rooms in the directories of their packages."""

    def find_spec(self, fullname: str, path: Optional[Sequence[str]], target: Any = None) -> Optional[ModuleSpec]:
        if not fullname.startswith(ROOMS):
            return None
        found = (FileFinder(place, (SourceFileLoader, [".py"])).find_spec(fullname) for place in path or ())
        return next((spec for spec in found if spec and spec.loader), None)


# Just before Ansible's loader, whose work it takes over: what stands before that one stays the first that is asked
ansibles = AnsibleCollectionConfig.collection_finder
sys.meta_path.insert(sys.meta_path.index(ansibles) if ansibles in sys.meta_path else 0, Finder())
