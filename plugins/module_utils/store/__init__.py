# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The model store of a host: releases, the links in served/ through which Triton reads them, and transactions that move links."""

from __future__ import annotations

from ansible_collections.npufleet.triton.plugins.module_utils.store.files import (
    DIRECTORIES,
    HISTORY,
    HOLD,
    HOLDS,
    HUNG,
    SHAPES,
    TRANSACTION,
    Run,
    StoreError,
    blob_path,
    is_complete,
    listed,
    locked,
    make_directories,
    make_directory,
    prepare,
    read,
    record_path,
    release_path,
    write_json,
    write_text,
)
from ansible_collections.npufleet.triton.plugins.module_utils.store.history import append_history, read_history
from ansible_collections.npufleet.triton.plugins.module_utils.store.records import Move
from ansible_collections.npufleet.triton.plugins.module_utils.store.releases import (
    changes_version,
    current_models,
    labels,
    make_release,
    move_links,
    read_record,
    release_content,
    served_label,
    served_names,
    small_file,
)
from ansible_collections.npufleet.triton.plugins.module_utils.store.rollback import (
    apply_holds,
    holds_after,
    holds_from_history,
    read_holds,
    rollback_moves,
    write_holds,
)
from ansible_collections.npufleet.triton.plugins.module_utils.store.transaction import (
    close_transaction,
    history_lines,
    open_transaction,
    read_transaction,
    renewal_time,
    restore,
)
