"""Training and importing of Medusa's (arXiv 2401.10774) and Hydra's heads (arXiv 2402.05109)."""
