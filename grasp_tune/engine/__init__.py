"""The torch side: problems, minibatch streams, optimizers, the worker and the checkpoint store.

Nothing is imported here, so that naming the folder loads neither torch nor anything else.
"""
