"""Methods that make the draft's output layer smaller."""
