# Copyright (c) mmweightformer contributors. All rights reserved.
import torch


def autocast_disabled(device: torch.device) -> torch.autocast:
    """A context in which autocast leaves the dtypes of ``device`` alone."""
    # Autocast refuses the meta device, where there is nothing to cast.
    device_type = 'cpu' if device.type == 'meta' else device.type
    return torch.autocast(device_type, enabled=False)
