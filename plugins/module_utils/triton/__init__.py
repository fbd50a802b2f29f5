# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Access to Triton: HTTP API, model loads over gRPC, metrics, log, stubs, command line and key."""
