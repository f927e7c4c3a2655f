"""The torch side. Nothing is imported here: naming the folder loads no torch."""
