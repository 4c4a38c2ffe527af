# Copyright (c) mmweightformer contributors. All rights reserved.
import torch


def is_traced() -> bool:
    """Whether the code runs to be compiled, exported or traced.

    What is recorded then has to hold for every size of the input, so there
    must be no branch on one.
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing()
