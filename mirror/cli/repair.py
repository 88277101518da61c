"""``twinsite repair``: what can be done about what a comparison has found."""

from __future__ import annotations

from pathlib import Path

import click

from mirror.cli.output import output_option


@click.command()
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", required=True, help="Settings of the flow."
)
@click.option("--dry-run", is_flag=True, help="Write nothing; this is the default without --apply.")
@click.option(
    "--apply", is_flag=True, help="Write. Without this everything is looked at and nothing is written."
)
@click.option(
    "--to-mapped",
    is_flag=True,
    help="Let partitions that keep the source's offsets become mapped: a repair shifts the offsets after it.",
)
@click.option(
    "--accept",
    is_flag=True,
    help="Leave what differs in append-only topics as it is: it is noted, and not compared any more.",
)
@output_option
@click.argument("plan", metavar="PLAN", type=click.Path(path_type=Path))
def repair(config: Path, output: str, plan: Path, dry_run: bool, **wanted: bool) -> int:
    """Repair what a comparison has found, as far as that can be done in place.

    PLAN is the folder of a run of `twinsite reconcile`, or the plan.json in it. Each key of a compacted topic
    that differs at the target gets one more record there; what was not copied yet is copied; for append-only
    topics the choices are listed. Partitions that stand still because others have written to them go on after
    that. What was written to since is left alone, so a plan can be carried out again. Everything that is
    written is noted in repairs.jsonl next to the plan.

    \b
    Exit codes: 0 nothing is left to be done, 3 something is, 1, 2 and 4 as always.
    Without --apply 0 means that --apply would leave nothing, not that there is nothing to repair.

    \b
    twinsite repair --config flow.yaml reconcile/20261122T143000Z-1f2e
    twinsite repair --config flow.yaml reconcile/20261122T143000Z-1f2e --apply
    """
    if dry_run and wanted["apply"]:
        raise click.UsageError("--dry-run and --apply exclude each other")
    from mirror.cli.repairing import run
    from mirror.repairing.model import Wanted

    return run(config, plan, Wanted(**wanted), output)
