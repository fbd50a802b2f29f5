# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Send requests to a Triton server and judge its answers.

This code runs in a container of the host's Triton image. So it imports only the standard library, numpy, tritonclient and
modules of this collection.
"""
