# Copyright (c) mmweightformer contributors. All rights reserved.
"""Nothing is looked up or fetched: imports, training, testing and counting."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from miniature import make_digits, small_options

CONFIG = 'configs/digits/wf_t_digits.py'
# Python runs it when it starts. It writes down whoever is called or looked up,
# and refuses it; this machine itself may be, as the parts of a run do.
DENY = '''
import os, socket, sys, traceback
LOCAL = {'localhost', '127.0.0.1', '::1', '', None, socket.gethostname()}

def refuse(what):
    with open(os.environ['CALLED'], 'a') as file:
        file.write(f'{what}\\n' + ''.join(traceback.format_stack()))
    raise OSError(f'no network: {what}')

def watch(event, arguments):
    if event in ('socket.connect', 'socket.sendto', 'socket.sendmsg'):
        sock, address = arguments
        if sock.family != socket.AF_UNIX and address[0] not in LOCAL:
            refuse(f'{event} {address}')
    elif event in ('socket.getaddrinfo', 'socket.gethostbyname'):
        name = arguments[0]
        if (name.decode() if isinstance(name, bytes) else name) not in LOCAL:
            refuse(f'{event} {name}')

sys.addaudithook(watch)
'''
# What tells libraries to stay offline would hide that they do not.
OFFLINE = ('HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE', 'HF_DATASETS_OFFLINE',
           'DIFFUSERS_OFFLINE', 'NO_ALBUMENTATIONS_UPDATE')
UNSHARE = ['unshare', '--net', '--map-root-user']
IMPORT = """
import importlib, pkgutil, mmweightformer
for module in pkgutil.walk_packages(mmweightformer.__path__,
                                    'mmweightformer.'):
    if not module.name.endswith('__main__'):
        importlib.import_module(module.name)
"""


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    return make_digits(tmp_path_factory.mktemp('digits'))


@pytest.fixture
def alone(tmp_path):
    """Run Python with all connections refused, and see that it asks none."""
    (tmp_path / 'sitecustomize.py').write_text(DENY)
    called = tmp_path / 'called'
    environ = {k: v for k, v in os.environ.items() if k not in OFFLINE}
    environ.update(PYTHONPATH=str(tmp_path), CALLED=str(called))
    # Nothing that was fetched before, either.
    for name in 'HF_HOME', 'TORCH_HOME', 'MMENGINE_HOME', 'XDG_CACHE_HOME':
        environ[name] = str(tmp_path / 'cache')

    def function(*arguments, before=()):
        result = subprocess.run(
            [*before, sys.executable, *map(str, arguments)],
            env=environ,
            capture_output=True,
            text=True)
        assert not called.exists(), called.read_text()
        return result

    return function


def succeed(result):
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr


def test_connections_are_refused(alone, tmp_path):
    """The test itself is able to fail."""
    for code in [
            's.create_connection(("192.0.2.1", 80))',
            's.getaddrinfo("example.invalid", 80)',
            's.socket(type=s.SOCK_DGRAM).sendto(b"", ("192.0.2.1", 53))',
            'import urllib.request as u; u.urlopen("http://192.0.2.1")'
    ]:
        with pytest.raises(AssertionError, match='socket.'):
            alone('-c', f'import socket as s; {code}')
        (tmp_path / 'called').unlink()
    succeed(alone('-c', 'import socket; socket.getaddrinfo("localhost", 80)'))


def test_imports(alone):
    succeed(alone('-c', IMPORT))


def namespace():
    """Where there can be one, no interface: for code that is not Python's."""
    if shutil.which('unshare') is None:
        return []
    works = subprocess.run([*UNSHARE, 'true'], capture_output=True)
    return UNSHARE if works.returncode == 0 else []


def test_training_testing_and_counting(alone, digits, tmp_path):
    work_dir, before = tmp_path / 'work', namespace()
    options = [
        '--work-dir', work_dir, '--cfg-options',
        *small_options(CONFIG, digits)
    ]
    for arguments in (['train.py', CONFIG, *options],
                      ['test.py', CONFIG, work_dir / 'epoch_1.pth',
                       *options], ['analysis_tools/get_flops.py', CONFIG]):
        succeed(alone(f'tools/{arguments[0]}', *arguments[1:], before=before))


def test_no_file_names_a_package_index():
    """Of those that pip or uv would follow."""
    for path in [*Path('requirements').rglob('*.txt'), Path('setup.cfg')]:
        text = path.read_text()
        assert '--index-url' not in text and '--find-links' not in text, path
