# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A run on the controller: its paths, files and batches, the text that hosts return, and the exit codes of commands."""
