"""Ranking: which of many things somebody will choose, from columns of ids and numbers."""
