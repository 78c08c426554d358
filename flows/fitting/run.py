"""Runs a fit that was checked."""

from __future__ import annotations

import time
from typing import Any

from flows.cli.progress import reporting
from flows.fitting.job import Job, Plan
from flows.fitting.stages import run_stages
from flows.running.stages import Stages
from pipeline.errors import FitError
from storage.dataset.kept_chunks import forget_chunks


def run_fit(plan: Plan) -> dict[str, Any]:
    """Run the stages of a fit that was checked, and give its summary."""
    begun, resume = time.perf_counter(), plan.options.resume
    with (
        plan.open_executor() as ready,
        plan.run.working(resume),
        reporting() as progress,
    ):
        job = Job(**vars(plan), executor=ready, progress=progress)
        stages = Stages(ready, plan.dataset.feature_names, plan.dataset.segment_names)
        try:
            summary = run_stages(job, stages)
        except FitError:
            if not resume and not plan.run.has_states():
                plan.run.close_work()  # refused before the first pass was done: nothing is lost
            raise
        finally:
            forget_chunks()
        plan.run.close_work()
    return {**summary, "seconds": round(time.perf_counter() - begun, 3), "stages": stages.seconds}
