# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The change of a host: the lease, the steps of the change, and the rollback by the host itself."""
