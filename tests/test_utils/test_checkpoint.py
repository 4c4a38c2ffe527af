# Copyright (c) mmweightformer contributors. All rights reserved.
"""Checkpoints that are damaged, foreign, malicious or of another model."""
import ast
import io
import os
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import Malicious, run_tool
from miniature import make_digits, small_options
from mmengine.logging import HistoryBuffer, MessageHub
from safetensors.torch import save as save_safetensors
from torch import nn

from mmweightformer.utils import load_state_dict
from mmweightformer.utils.checkpoint import load_checkpoint

CONFIG = 'configs/digits/wf_t_digits.py'
ERROR = 'cannot be read as a checkpoint'


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Build:
    """Calls a function when it is unpickled, and sets a state."""

    def __init__(self, function, arguments, state):
        self.call = function, arguments, state

    def __reduce__(self):
        return self.call


def saved(content, zipped=True):
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def archive(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w') as zipped:
        for name, content in members.items():
            zipped.writestr(name, content)
    return file.getvalue()


def tar():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode='w') as archived:
        for name in 'storages', 'tensors', 'pickle':
            archived.addfile(tarfile.TarInfo(name))
    return file.getvalue()


def array(save, **kwargs):
    file = io.BytesIO()
    save(file, np.zeros(3), **kwargs)
    return file.getvalue()


def script():
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(1, 1)), file)
    return file.getvalue()


STATE = {'a.weight': torch.arange(5000.)}
WHOLE = {zipped: saved(STATE, zipped) for zipped in (True, False)}
FOREIGN = dict(
    empty=b'',
    text=b'PKG-INFO: not a checkpoint\n',
    jpeg=b'\xff\xd8\xff\xe0\0\x10JFIF\0' + bytes(100),
    safetensors=save_safetensors(STATE),
    npy=array(np.save),
    npz=array(np.savez),
    zip=archive(readme='text'),
    pickle_in_zip=archive(data=pickle.dumps(STATE)),
    tar=tar(),
    script=script(),
    trailing=b'\xff\xd8' + WHOLE[True],
    **{
        f'truncated_{"zip" if zipped else "legacy"}_{part}':
        content[:int(len(content) * part)]
        for zipped, content in WHOLE.items()
        for part in (0.01, 0.5, 0.999)
    },
    pickle=pickle.dumps(STATE))


@pytest.mark.parametrize('name', FOREIGN)
def test_foreign_and_damaged_files(name, tmp_path):
    path = tmp_path / f'{name}.pth'
    path.write_bytes(FOREIGN[name])
    with pytest.raises(ValueError, match=f'{name}.pth {ERROR}: .'):
        load_checkpoint(str(path))


def test_a_flipped_bit_is_found(tmp_path):
    content = bytearray(WHOLE[True])
    content[len(content) // 2] ^= 1
    path = tmp_path / 'a.pth'
    path.write_bytes(content)
    with pytest.raises(ValueError, match=ERROR):
        load_checkpoint(str(path))


def evil_objects(target):
    """Each would make the file, or use a number as an address."""
    return [
        Call(os.mkdir, target),
        Call(open, target, 'w'),
        Call(eval, f'__import__("os").mkdir({target!r})'),
        Call(np.ndarray, (1, ), 'O', b'\1' * 8),
        Call(np.dtype, 'O'),
        Call(np.dtype, [('x', 'O')]),
        Call(getattr, HistoryBuffer, '__init__'),
        Call(getattr, Call(getattr, HistoryBuffer, 'mean'), '__globals__'),
        Build(*np.empty(0).__reduce__()[:2],
              (1, (1, ), np.dtype('O'), False, b'\1' * 8)),
        np.array([Malicious()]),
        Call(torch.load, target),
        Call(bytes, 10**15),
    ]


@pytest.mark.parametrize('zipped', [True, False])
@pytest.mark.parametrize('kind', range(len(evil_objects(''))))
def test_no_code_is_run(kind, zipped, tmp_path, capsys):
    target, path = tmp_path / 'made', tmp_path / 'evil.pth'
    content = dict(state_dict=STATE, meta=evil_objects(str(target))[kind])
    # Saving calls none of them.
    path.write_bytes(saved(content, zipped))
    for load in load_checkpoint, load_state_dict:
        with pytest.raises(ValueError, match=f'evil.pth {ERROR}'):
            load(str(path))
    assert list(tmp_path.iterdir()) == [path]
    assert 'unpickled' not in capsys.readouterr().out


def test_what_is_wanted_is_named(tmp_path):
    path = tmp_path / 'a.pth'
    path.write_bytes(saved(Malicious()))
    with pytest.raises(
            ValueError, match=r'asks for (builtins\.)?print, .*save the st'):
        load_checkpoint(str(path))


def training_checkpoint():
    """All kinds of values that mmengine saves."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    hub = MessageHub('test')
    for loss in 0.5, 0.25:
        hub.update_scalar('train/loss', loss)
    hub.update_info_dict(
        dict(
            eta=np.float64(1.5),
            step=np.int32(-7),
            best=np.bool_(True),
            palette=np.arange(6, dtype=np.uint8).reshape(2, 3).T,
            big=np.array([1., 2.], '>f4'),
            empty=np.zeros((0, 2)),
            nested=[(np.ones(1), {
                'x': np.float16(2)
            }), None]))
    return dict(
        state_dict=model.state_dict(),
        ema_state_dict=model.state_dict(),
        message_hub=hub.state_dict(),
        optimizer=optimizer.state_dict(),
        param_schedulers=[dict(base_values=[0.1], last_step=2)],
        meta=dict(epoch=1, iter=2, dataset_meta=dict(classes=('a', 'b'))))


def assert_same(actual, expected):
    assert type(actual) is type(expected)
    if isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for pair in zip(actual, expected):
            assert_same(*pair)
    elif isinstance(expected, HistoryBuffer):
        assert actual.mean() == expected.mean()
        actual.update(1.)  # it goes on
        assert_same(actual.data[0][:-1], expected.data[0])
    elif isinstance(expected, np.ndarray):
        assert actual.dtype == expected.dtype and actual.flags.writeable
        assert np.array_equal(actual, expected)
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(actual, expected)
    else:
        assert actual == expected


@pytest.mark.parametrize('zipped', [True, False])
def test_a_training_checkpoint_is_loaded_whole(zipped, tmp_path):
    path, checkpoint = tmp_path / 'a.pth', training_checkpoint()
    path.write_bytes(saved(checkpoint, zipped))
    assert_same(load_checkpoint(str(path)), checkpoint)


@pytest.mark.parametrize('module', [b'numpy.core', b'numpy._core'])
def test_of_either_numpy(module, tmp_path):
    """NumPy 2 has moved what arrays are made of."""
    path, checkpoint = tmp_path / 'a.pth', training_checkpoint()
    content = saved(checkpoint, zipped=False)
    for other in b'numpy.core', b'numpy._core':
        content = content.replace(b'c' + other + b'.', b'c' + module + b'.')
    assert b'c' + module + b'.multiarray\n' in content
    path.write_bytes(content)
    assert_same(load_checkpoint(str(path)), checkpoint)


def test_statistics_stay_as_they_are(tmp_path):
    """A file cannot put anything else into their class."""
    path = tmp_path / 'a.pth'
    path.write_bytes(saved(training_checkpoint()))
    load_checkpoint(str(path))
    assert HistoryBuffer([1., 3.], [1, 1]).statistics('mean') == 2


# Through the tools.


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Two iterations of a small classifier, and how to do them again."""
    root = tmp_path_factory.mktemp('trained')
    options = small_options(CONFIG, make_digits(root / 'digits'))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend('tools')
        assert run_tool('tools/train.py', CONFIG, '--work-dir', root,
                        '--cfg-options', *options) is None
    return root / 'epoch_1.pth', options


@pytest.fixture
def call(trained, tmp_path, monkeypatch):
    """A tool on the small classifier, and what it exits with."""
    monkeypatch.syspath_prepend('tools')

    def function(tool, *arguments, more=()):
        # mmengine has its visualizers and loggers by their names.
        name = f'experiment_name={tmp_path.name}_{id(object())}'
        return run_tool(tool, CONFIG, *arguments, '--work-dir',
                        tmp_path / 'work', '--cfg-options', *trained[1], name,
                        *more)

    return function


def both_tools(call, path):
    """What tools/test.py says, and tools/train.py as well."""
    errors = {
        call('tools/test.py', path),
        call('tools/train.py', '--resume', path)
    }
    assert len(errors) == 1
    return errors.pop()


@pytest.mark.parametrize('name', [
    'empty', 'text', 'jpeg', 'safetensors', 'npz', 'script',
    'truncated_zip_0.5', 'truncated_legacy_0.5'
])
def test_tools_refuse_foreign_and_damaged_files(name, call, tmp_path):
    path = tmp_path / 'a.pth'
    path.write_bytes(FOREIGN[name])
    error = both_tools(call, path)
    assert str(path) in error and len(error.strip().splitlines()) == 1
    assert 'checkpoint' in error


def test_tools_refuse_a_folder(call, tmp_path):
    assert 'is not a file' in both_tools(call, tmp_path)


@pytest.mark.parametrize('zipped', [True, False])
def test_tools_run_no_code(zipped, trained, call, tmp_path):
    target, path = tmp_path / 'made', tmp_path / 'evil.pth'
    content = torch.load(trained[0], weights_only=False)
    content['message_hub']['runtime_info']['x'] = Call(os.mkdir, str(target))
    path.write_bytes(saved(content, zipped))
    error = both_tools(call, path)
    assert 'evil.pth' in error and 'mkdir' in error
    for option in 'load_from', 'pretrained':
        error = call('tools/train.py', more=[f'{option}={path}'])
        assert 'evil.pth' in error and 'mkdir' in error
    assert not target.exists()


def test_tools_take_a_legacy_checkpoint(trained, call, tmp_path):
    path = tmp_path / 'legacy.pth'
    path.write_bytes(saved(torch.load(trained[0], weights_only=False), False))
    assert call('tools/test.py', path) is None
    assert call(
        'tools/train.py', '--resume', path,
        more=['train_cfg.max_epochs=2']) is None
    assert (tmp_path / 'work' / 'epoch_2.pth').exists()


def change(trained, path, function, **entries):
    checkpoint = torch.load(trained[0], weights_only=False)
    checkpoint['state_dict'] = function(checkpoint['state_dict'])
    torch.save({**checkpoint, **entries}, path)


def test_another_model_is_told(trained, call, tmp_path):
    path = tmp_path / 'other.pth'
    change(trained, path, lambda s: {f'other.{k}': v for k, v in s.items()})
    errors = [both_tools(call, path)] + [
        call('tools/train.py', more=[f'{option}={path}'])
        for option in ('load_from', 'pretrained')
    ]
    for error in errors:
        assert 'other.pth is one of another model: it has none' in error
        assert ' other.backbone.' in error


def test_other_classes_are_told(trained, call, tmp_path):
    path = tmp_path / 'other.pth'
    change(
        trained, path, lambda s: {
            k: v[:3] if k.startswith('head.fc.') else v
            for k, v in s.items()
        })
    error = both_tools(call, path)
    assert 'other.pth is one of another model: size mismatch for head.fc.' \
        in error
    assert '1 more' in error
    # Training for other classes may start from it.
    assert call('tools/train.py', more=[f'load_from={path}']) is None


def test_what_is_lacking_is_counted(trained, call, tmp_path, capfd):
    path = tmp_path / 'part.pth'
    change(trained, path, lambda s: {
        k: v
        for k, v in s.items() if not k.startswith('head.')
    })
    assert call('tools/test.py', path) is None
    output = ''.join(capfd.readouterr())
    total = len(torch.load(path, weights_only=False)['state_dict']) + 2
    assert f'part.pth lacks 2 of the {total} entries of the model' in output


def test_weights_alone_are_none_to_resume(trained, call, tmp_path):
    path = tmp_path / 'weights.pth'
    torch.save(dict(state_dict=load_state_dict(str(trained[0]))), path)
    error = call('tools/train.py', '--resume', path)
    assert 'it lacks message_hub, meta, optimizer, param_sch' in error
    assert f'load_from={path}' in error


# What is in the repository.


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            keywords = {
                word.arg: ast.unparse(word.value)
                for word in node.keywords
            }
            yield ast.unparse(node.func), keywords


def test_nothing_unpickles_otherwise():
    found = 0
    for folder in 'mmweightformer', 'tools', 'examples', '.dev_scripts':
        for path in Path(folder).rglob('*.py'):
            for name, keywords in calls(ast.parse(path.read_text())):
                if name == 'torch.load':
                    found += 1
                    assert keywords['weights_only'] == 'True', path
                assert 'pickle_module' not in keywords, path
                assert keywords.get('allow_pickle', 'False') == 'False', path
                assert not name.endswith(('pickle.load', 'pickle.loads',
                                          'Unpickler', 'joblib.load')), path
    assert found > 0
