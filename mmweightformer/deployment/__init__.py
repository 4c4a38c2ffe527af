# Copyright (c) mmweightformer contributors. All rights reserved.
from .exportable import PARTS, Exportable
from .formats import SUFFIXES, Check, export

__all__ = ['Check', 'Exportable', 'PARTS', 'SUFFIXES', 'export']
