# Copyright (c) mmweightformer contributors. All rights reserved.
"""Files that appear under their names only when they are whole."""
import os
import os.path as osp
from typing import Any, BinaryIO, Callable

# Behind the name of a file that is being written.
PART = '.part'


def write_atomically(path: str, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file so that a crash leaves the former one or the new one.

    The content goes to a file beside it and from memory to the disk, and only
    then takes the name of the former one.

    Args:
        path (str): The file to write, in a folder that is there.
        write (Callable): Writes all of it to an open file.

    Raises:
        OSError: If it cannot be written, as on a full disk; it names the
            file. What was there under the name stays, and nothing else is
            left.
    """
    part = path + PART
    if osp.islink(part):
        os.remove(part)  # which may lead elsewhere
    try:
        with open(part, 'wb') as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        if osp.exists(part):
            os.remove(part)
        if isinstance(error, OSError) and error.errno is not None:
            # Not all of them name a file.
            raise OSError(error.errno, error.strerror, path) from error
        raise
    # The new name, too, is only in memory until its folder is written.
    folder = os.open(osp.dirname(path) or '.', os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
