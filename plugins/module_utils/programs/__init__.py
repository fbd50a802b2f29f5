# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Programs that are sent to hosts: an archive of Python files for a container, and the library that a host keeps."""

from __future__ import annotations
