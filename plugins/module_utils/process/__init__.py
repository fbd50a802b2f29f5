# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The server as a process in the container in which Ansible runs: start it, stop it and read its state."""
