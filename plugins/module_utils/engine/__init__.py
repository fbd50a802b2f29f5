# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The Docker engine of a host: its API, configuration, images, registries, containers of checks, and access to NPUs."""
