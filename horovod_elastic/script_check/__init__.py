"""The static check of a training script (flexo check): what keeps the script from being resized."""
