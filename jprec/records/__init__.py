"""What does a run leave behind? Strict JSON files, written whole or not at all, and a journal."""

from jprec.records.files import as_floats, dumps, read_json, write_json, write_text
from jprec.records.journal import Journal, read_journal
from jprec.records.lock import FolderInUse, locked

__all__ = [
    "FolderInUse",
    "Journal",
    "as_floats",
    "dumps",
    "locked",
    "read_journal",
    "read_json",
    "write_json",
    "write_text",
]
