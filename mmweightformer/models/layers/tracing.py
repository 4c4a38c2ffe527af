# Copyright (c) mmweightformer contributors. All rights reserved.
import torch


def is_traced() -> bool:
    """Whether the code is compiled, exported, traced or transformed.

    What is recorded then has to hold for every size of the input, so there
    must be no branch on one; and transforms, such as ``torch.func.vmap``, take
    neither ``out=`` nor channels-last.
    """
    return (torch.compiler.is_compiling() or torch.jit.is_tracing()
            or torch._C._are_functorch_transforms_active())
