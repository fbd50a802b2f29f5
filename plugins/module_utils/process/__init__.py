"""A Triton server as a process of the container that Ansible itself runs in: supervised, changed, proven, put back."""

from __future__ import annotations
