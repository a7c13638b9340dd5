"""What TensorBoard's own reader finds in a folder: tag, then step:value of each of its scalars."""

import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
for tag in sorted(events.Tags()["scalars"]):
    print(tag, *(f"{scalar.step}:{scalar.value:g}" for scalar in events.Scalars(tag)))
