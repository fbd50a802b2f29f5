# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Programs that the controller sends to hosts: archives of Python files, and the library of this collection on a host."""
