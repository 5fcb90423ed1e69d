"""Heads: one class per kind, with its settings, targets and network."""

from hydragnn.models.heads.base import AnyHead, HeadContext, HeadSettings, head_kind, head_kinds, parse_head
