"""The page of a run: what validation and testing write for it, and the page itself."""

from mmseg_ext.reports.results_hook import RunResultsHook

__all__ = ["RunResultsHook"]
