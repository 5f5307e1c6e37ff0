"""Tensors in, tensors out: the few hot operations, each a plain version and, where it pays, a fast twin."""
