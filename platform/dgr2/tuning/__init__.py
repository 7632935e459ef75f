"""Search over the settings of a stage with Ray Tune; space, plan and capacity are pure."""
