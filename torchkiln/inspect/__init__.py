"""Static checks: layers read from outside, nothing executed."""
