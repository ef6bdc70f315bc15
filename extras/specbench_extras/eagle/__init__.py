"""Training and importing of heads that go on with the target's last state: EAGLE, HASS, FSPAD and Dovetail."""
