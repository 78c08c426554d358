"""Runs a fit that was checked."""

from __future__ import annotations

import time
from typing import Any

from flows.cli.progress import report_progress
from flows.fitting.job import FitJob, FitPlan
from flows.fitting.stages import run_fit_stages
from flows.running.flow import StageRunner
from pipeline.errors import FitError
from storage.dataset.chunks import clear_chunk_cache


def run_fit(plan: FitPlan) -> dict[str, Any]:
    """Run the stages of a fit that was checked, and give its summary."""
    begun, resume = time.perf_counter(), plan.options.resume
    with (
        plan.open_executor() as ready,
        plan.run_folder.claim_work(resume),
        report_progress() as progress,
    ):
        job = FitJob(**vars(plan), executor=ready, progress=progress)
        stages = StageRunner(ready, plan.dataset.feature_names, plan.dataset.segment_names)
        try:
            summary = run_fit_stages(job, stages)
        except FitError:
            if not resume and not plan.run_folder.has_states():
                plan.run_folder.delete_work()  # refused before the first pass was done: nothing is lost
            raise
        finally:
            clear_chunk_cache()
        plan.run_folder.delete_work()
    return {**summary, "seconds": round(time.perf_counter() - begun, 3), "stages": stages.seconds}
