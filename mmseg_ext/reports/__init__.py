"""The HTML report of a run, and the hook that writes what it shows."""

from mmseg_ext.reports.results_hook import RunResultsHook

__all__ = ["RunResultsHook"]
