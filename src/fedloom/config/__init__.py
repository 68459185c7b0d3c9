"""Run files: one TOML file describes a run."""
