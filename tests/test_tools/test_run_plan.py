# Copyright (c) mmweightformer contributors. All rights reserved.
"""What tools that train a plan of several runs have in common."""
import pytest
from helpers import run_tool


@pytest.mark.parametrize('name', ['compare', 'ablate', 'generate'])
def test_folder_that_cannot_be_made(name, tmp_path):
    (tmp_path / 'file').touch()
    message = run_tool(f'tools/analysis_tools/{name}.py', '--work-dir',
                       tmp_path / 'file' / 'runs')
    assert message.startswith('\n[Errno 20] Not a directory')
