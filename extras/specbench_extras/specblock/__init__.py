"""Training of SpecBlock's drafter."""
