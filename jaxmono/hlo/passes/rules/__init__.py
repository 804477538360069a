"""Rewrite rules by subject; each module ends in ``RULES``, a table by op class."""
