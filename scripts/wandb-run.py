"""Hands a run folder's numbers to Weights & Biases, for `pip install wandb`:

    python3 scripts/wandb-run.py runs/tiny [project]

As the client is set up: with WANDB_MODE=offline it writes files that `wandb sync` uploads later.
"""

import json
import pathlib
import sys
import tomllib

import wandb


def steps(path):
    """The lines that count of a file that may be cut short: a step that comes once more takes back what came after it."""
    records = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        while records and records[-1]["step"] >= record["step"]:
            records.pop()
        records.append(record)
    return records


def main(folder, project="tandem"):
    folder = pathlib.Path(folder)
    run_id = json.loads((folder / "plan.json").read_text())["run_id"]
    config = tomllib.loads((folder / "config.toml").read_text())
    run = wandb.init(project=project, name=run_id, config=config, dir=folder)
    for record in steps(folder / "metrics.jsonl"):
        step = record.pop("step")
        slots = record.pop("slot_accuracy", [])
        record.update({f"slot_accuracy/{place:02}": accuracy for place, accuracy in enumerate(slots, 1)})
        run.log(record, step=step)
    summary = folder / "summary.json"
    if summary.is_file():
        run.summary.update(json.loads(summary.read_text()))
    run.finish()


main(*sys.argv[1:])
