"""What a cheap resize is worth: every policy at several prices of a change, beside Pollux and Sia."""
