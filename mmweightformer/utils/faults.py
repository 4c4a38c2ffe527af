# Copyright (c) mmweightformer contributors. All rights reserved.
from typing import Dict, List, Optional, Tuple


class Faults:
    """What is wrong with the data of a config, by kind.

    Args:
        num_names (int): As many of the names of a kind are shown. Default: 3.
    """

    def __init__(self, num_names: int = 3) -> None:
        self.num_names = num_names
        self._names: Dict[Tuple[bool, str, str], List[str]] = {}

    def add(self,
            where: str,
            what: str,
            name: Optional[str] = None,
            stops: bool = True) -> None:
        """Add a fault, or to one that is there another ``name`` that has it.

        Args:
            where (str): The file or folder, and the config's field.
            what (str): What is wrong, and what follows from it.
            name (str, optional): Which of many has it. Default: None.
            stops (bool): Whether training or testing cannot go on with it.
                Default: True.
        """
        names = self._names.setdefault((stops, where, what), [])
        if name is not None:
            names.append(name)

    def update(self, others: 'Faults') -> None:
        """Add other faults."""
        for kind, names in others._names.items():
            self._names.setdefault(kind, []).extend(names)

    def lines(self, stops: bool) -> List[str]:
        """The faults that stop a run, or those that do not, one a line."""
        return [
            f'{where}: {what}{self._examples(names)}'
            for (fatal, where, what), names in self._names.items()
            if fatal == stops
        ]

    def _examples(self, names: List[str]) -> str:
        if not names:
            return ''
        more = len(names) - self.num_names
        shown = ', '.join(names[:self.num_names])
        return f': {shown}' + (f' and {more} more' if more > 0 else '')
