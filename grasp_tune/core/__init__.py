"""The method: numbers only. Nothing here loads torch, Ray or Optuna."""
