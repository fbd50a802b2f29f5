# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Check files: the requests to each model, the expected responses, and the arrays of requests and responses."""
