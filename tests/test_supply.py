# Copyright (c) mmweightformer contributors. All rights reserved.
"""What is installed: requirements, lock files, bounds and licences."""
import configparser
import re
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REQUIREMENTS = Path('requirements')
LOCKS = sorted((REQUIREMENTS / 'locked').glob('*.txt'))
TESTED = [
    'maintained-py310', 'maintained-py311', 'maintained-py312',
    'original-py311'
]
NOTICES = runpy.run_path('.dev_scripts/notices.py')
INSTALL = '.dev_scripts/install.py'


def requirements(name):
    lines = (REQUIREMENTS / f'{name}.txt').read_text().splitlines()
    return [Requirement(line) for line in lines if line[:1] not in ('', '#')]


def versions(lock):
    return {
        name: Version(version)
        for name, version in re.findall(r'^([\w.-]+)==(\S+)', lock.read_text(),
                                        re.M)
    }


def test_each_tested_environment_is_locked():
    assert [path.stem for path in LOCKS] == TESTED


@pytest.mark.parametrize('lock', LOCKS, ids=lambda path: path.stem)
def test_each_release_is_pinned_with_hashes(lock):
    """And nothing else is in a lock, such as an index or a path."""
    entry = (r'[a-z\d]+(-[a-z\d]+)*==[\w.]+'
             r'( ; [\w. "\'<>=!]+)?( \\\n    --hash=sha256:[\da-f]{64})+\n')
    comment = r'(# .*\n)+'
    assert re.fullmatch(f'{comment}({entry})+', lock.read_text())


@pytest.mark.parametrize('lock', LOCKS, ids=lambda path: path.stem)
def test_locks_satisfy_the_requirements(lock):
    stack, locked = lock.stem.split('-')[0], versions(lock)
    for name in 'build', stack, 'optional', 'tests':
        for requirement in requirements(name):
            version = locked[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), (name, requirement)


def test_locks_are_taken_apart_whole(tmp_path):
    split = runpy.run_path(INSTALL)['split_lock']
    for lock in LOCKS:
        parts = split(lock, tmp_path)
        texts = [Path(arguments[-1]).read_text() for arguments in parts]
        entries = re.sub('^#.*\n', '', lock.read_text(), flags=re.M)
        assert sorted(''.join(texts).splitlines()) == sorted(
            entries.splitlines())
        build, others, mmcv = texts
        assert re.findall(r'^[\w-]+', mmcv, re.M) in (['mmcv'], ['onedl-mmcv'])
        assert 'ninja==' in build and 'torch==' in others
        for arguments in parts:
            assert '--require-hashes' in arguments


def test_an_environment_that_was_not_tested_is_not_locked(tmp_path):
    """A copy, so that there is nothing to install."""
    script = tmp_path / '.dev_scripts' / 'install.py'
    script.parent.mkdir()
    script.write_text(Path(INSTALL).read_text())
    locked = tmp_path / 'requirements' / 'locked'
    locked.mkdir(parents=True)
    (locked / 'maintained-py27.txt').write_text('')
    result = subprocess.run(
        [sys.executable, script, '--locked', '--venv', tmp_path / 'venv'],
        capture_output=True,
        text=True)
    assert result.returncode != 0
    assert 'there are maintained-py27' in result.stderr
    assert not (tmp_path / 'venv').exists()


@pytest.mark.parametrize('name', ['optional', 'tests'])
def test_lower_bounds_are_the_oldest_tested(name):
    locked = [versions(lock) for lock in LOCKS]
    for requirement in requirements(name):
        key = canonicalize_name(requirement.name)
        oldest = min(lock[key] for lock in locked)
        assert str(requirement.specifier) == f'>={oldest}', requirement


def test_torch_is_as_old_as_tested():
    setup = configparser.ConfigParser()
    setup.read('setup.cfg')
    required = setup['options']['install_requires'].strip().splitlines()
    oldest = min(versions(lock)['torch'] for lock in LOCKS)
    assert f'torch>={oldest}' in required


def rows():
    text = NOTICES['FILE'].read_text()
    return dict(match.groups() for match in NOTICES['ROW'].finditer(text))


def test_all_packages_have_a_notice():
    names = set.union(*(set(versions(lock)) for lock in LOCKS))
    assert set(rows()) == names | NOTICES['direct']().keys()


def test_notices_say_what_packages_state():
    licences, found = rows(), 0
    for name in NOTICES['direct']():
        try:
            stated = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue  # of the other stack
        found += 1
        assert licences[name] == NOTICES['licence'](stated), name
    assert found > 10


def test_wheels_bring_the_licence_and_the_notices():
    setup = configparser.ConfigParser()
    setup.read('setup.cfg')
    files = setup['metadata']['license_files'].split()
    assert files == ['LICENSE', 'THIRD_PARTY_NOTICES.md']
    assert 'Apache License' in Path('LICENSE').read_text()
