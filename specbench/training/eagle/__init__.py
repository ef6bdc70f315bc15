"""Training of heads that go on with the target's last state."""
