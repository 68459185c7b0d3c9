"""Models: a block for each silo, the head over their embeddings, the loss; the papers' models; and
checks that a module can be trained here. A block is a pure function of its parameters.

May import: core, data.
"""
