# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The host's part of a transfer: download files, and take over files that the controller sent."""
