"""What is learned: a block for each silo, how embeddings are joined, the loss; and the library of
the papers' models. A block is a pure function of its parameters.

May import: core, data.
"""
