"""Opens a table of the lake with `deltalake`, and appends commits to its log."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import DataType
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    PostCommitHookProperties,
    RemoveAction,
    create_table_with_add_actions,
)

from restante.common.errors import Misuse, plain
from restante.pipeline.lake import columns, data_files, delta_log, statistics
from restante.pipeline.lake.commit_info import CommitInfo
from restante.pipeline.lake.data_files import DataFile
from restante.pipeline.lake.url_path import LakePath, UrlPath, error_text, path_below
from restante.pipeline.schemas import Table

TABLE_PROPERTIES: Final[dict[str, str | None]] = {
    # Other programs remove log entries by their age alone. We keep those whose commit infos are needed
    # (delta_log.expired_entries).
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
}

_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

MAX_PROBES: Final = 50
"""How often two threads make a table to find out about conditional puts. With moto, on a busy machine, one attempt in
eight showed nothing."""

MAX_READER_VERSION: Final = 1
"""The greatest reader version of the protocol that requires only plain Parquet files (Delta protocol, "Valid Feature
Names in Table Features"): no deletion vectors, no mapped columns."""


def open_table(folder: LakePath, table: Table) -> DeltaTable | None:
    """Open the table in a folder. Return None if there is none. Raises StoreError or Misuse if it cannot be ours."""
    try:
        delta = DeltaTable(str(folder))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise data_files.unreadable_file(folder / delta_log.LOG_FOLDER, error_message(error)) from error
    if delta.protocol().min_reader_version > MAX_READER_VERSION:
        raise Misuse(
            f"{folder} has features of Delta tables that Restante cannot read, which another program added:"
            " restore it from a backup, or name another lake with --lake"
        )
    fields, expected = _fields(delta.schema()), _fields(columns.delta_schema(table))
    late = missing_columns(delta, table)
    if fields != {name: field for name, field in expected.items() if name not in late} or (
        tuple(delta.metadata().partition_columns) != table.partitions
    ):
        raise Misuse(
            f"the table {folder} has other columns than this version of Restante expects:"
            " remove it, and run ingest and build again, or name another lake with --lake"
        )
    return delta


def missing_columns(delta: DeltaTable, table: Table) -> set[str]:
    """Return the columns that the table was made without, by an earlier version of Restante (Column.added)."""
    stored_names = {field.name for field in delta.schema().fields}
    return {column.name for column in table.columns if column.added} - stored_names


def _fields(schema: Schema) -> dict[str, tuple[DataType, bool]]:
    """Return the types of the columns, and whether each may be NULL; not their comments, which may be older."""
    return {field.name: (field.type, field.nullable) for field in schema.fields}


def error_message(error: Exception) -> str:
    """Return the system's message for an error, or the first line of one of `deltalake`."""
    if isinstance(error, OSError) and error.errno:
        return plain(error)
    if match := re.search(r"\(os error (\d+)\)", str(error)):
        return os.strerror(int(match[1]))
    return error_text(error)


def append_commit(
    delta: DeltaTable | None,
    folder: LakePath,
    table: Table,
    info: CommitInfo,
    *,
    added: Sequence[DataFile],
    removed: Sequence[DataFile],
    data_change: bool,
) -> None:
    """Append a commit to the log. If `delta` is None, make the table with it. Raises DeltaError, OSError.

    `data_change` is False if the added files have the rows of the removed ones.
    """
    schema = columns.delta_schema(table)
    adds = [
        AddAction(
            path=path_below(file.path, folder).as_posix(),
            size=file.size,
            partition_values=file.partition,
            modification_time=int(info.finished * 1000),
            data_change=data_change,
            stats=statistics.delta_statistics(file.rows, file.ranges),
        )
        for file in added
    ]
    properties = _properties(info)
    if delta is None:
        if not isinstance(folder, UrlPath):
            folder.mkdir(exist_ok=True)
        create_table_with_add_actions(
            str(folder),
            schema,
            adds,
            partition_by=list(table.partitions),
            configuration=TABLE_PROPERTIES,
            commit_properties=properties,
            post_commithook_properties=_HOOKS,
        )
        return
    removes = [
        RemoveAction(
            path_below(file.path, folder).as_posix(),
            data_change=data_change,
            deletion_timestamp=int(info.finished * 1000),
            size=file.size,
            partition_values=dict(file.partition),
        )
        for file in removed
    ]
    delta.create_write_transaction(
        [*adds, *removes],
        "append",
        schema,
        list(table.partitions),
        commit_properties=properties,
        post_commithook_properties=_HOOKS,
    )


def has_conditional_puts(lake: UrlPath, name: str) -> bool:
    """Return whether the store refuses to create an object that exists. Raises DeltaError, OSError.

    `name` is how the names of the objects begin that are created to find out.

    Two threads make the same table. Each looks for the table, and then creates its first entry. If one is done before
    the other has looked, nothing is known, and they make another one.
    """
    with ThreadPoolExecutor(2) as pool:
        for _ in range(MAX_PROBES):
            probe = lake / f"{name}-{uuid.uuid4().hex}"
            try:
                refusals = list(pool.map(_is_refused, [str(probe)] * 2))
            finally:
                probe.remove_all()
            if None not in refusals:
                return True in refusals
    raise OSError("it is too busy to find out whether it has conditional puts; run this again")


def _is_refused(url: str) -> bool | None:
    """Make a table. Return whether its first entry was refused when it was put; None if it was seen before that."""
    schema = Schema.from_arrow(pa.schema([("number", pa.int64())]))
    try:
        DeltaTable.create(url, schema, commit_properties=CommitProperties(max_commit_retries=0))
    except CommitFailedError:
        return True
    except DeltaError as error:
        if "already exists" in str(error):
            return None
        raise
    return False


def add_columns(delta: DeltaTable, table: Table, info: CommitInfo) -> None:
    """Append a commit to the log that adds the columns that the table lacks. Raises DeltaError, OSError."""
    late = missing_columns(delta, table)
    delta.alter.add_columns(
        [field for field in columns.delta_schema(table).fields if field.name in late],
        commit_properties=_properties(info),
        post_commithook_properties=_HOOKS,
    )


def _properties(info: CommitInfo) -> CommitProperties:
    return CommitProperties(
        custom_metadata={delta_log.COMMIT_INFO_KEY: msgspec.to_builtins(info)},
        max_commit_retries=0,  # the removals were chosen for this version
    )
