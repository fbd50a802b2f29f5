# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Safe use of services of the kernel: locks, the seconds since boot, durable files, directory trees of any depth."""
