# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The programs that systemd runs beside the server: the watchdog (a service) and the probe (started by a timer)."""
