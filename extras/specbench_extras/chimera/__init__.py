"""Training of heads that encode three tokens and read the target's last states."""
