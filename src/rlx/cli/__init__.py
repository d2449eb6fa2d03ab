"""The words that a person types. This room parses, prints and chooses exit statuses; it trains
nothing."""

from rlx.cli.main import main

__all__ = ["main"]
