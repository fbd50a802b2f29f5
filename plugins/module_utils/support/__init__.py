# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The content of a host's support bundle, and the functions that read it on the host."""
