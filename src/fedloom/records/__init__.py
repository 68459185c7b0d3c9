"""What a run leaves behind: records, checkpoints, a manifest.

May import: core, data, fabric, config, models.
"""
