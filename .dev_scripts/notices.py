# Copyright (c) mmweightformer contributors. All rights reserved.
"""Bring the table of packages in THIRD_PARTY_NOTICES.md up to date.

It has what each installed package says of its licence; the lines of
packages that are in no lock file are dropped, and those of packages that
another environment has are kept. So run it in an environment of each stack,
the maintained one last, after lock.py:

    .venv/bin/python .dev_scripts/notices.py
"""
import re
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / 'THIRD_PARTY_NOTICES.md'
# Of the words that packages use, those that name a licence of the SPDX list.
SPDX = {
    'Apache 2.0': 'Apache-2.0',
    'Apache 2.0 License': 'Apache-2.0',
    'Apache License': 'Apache-2.0',
    'Apache License 2.0': 'Apache-2.0',
    'Apache Software License': 'Apache-2.0',
    'LicenseRef-Apache-2.0': 'Apache-2.0',
    'MIT License': 'MIT',
    'Expat license': 'MIT',
    '3-Clause BSD License': 'BSD-3-Clause',
    'BSD 3-Clause License': 'BSD-3-Clause',
    'BSD 3-Clause': 'BSD-3-Clause',
    'FreeBSD': 'BSD-2-Clause',
    'Mozilla Public License 2.0 (MPL 2.0)': 'MPL-2.0',
    'Python Software Foundation License': 'PSF-2.0',
}
OTHERS = 'others of these'
ROW = re.compile(r'^\| ([a-z\d][a-z\d-]*) \| (.+) \| [\w, ]+ \|\n', re.M)


def direct():
    """Names in the requirement files, each with what it is needed for."""
    uses = {}
    for path in sorted((ROOT / 'requirements').glob('*.txt')):
        for line in path.read_text().splitlines():
            name = re.match(r'[\w.-]+', line)
            if name:
                use = uses.setdefault(canonicalize_name(name.group()), [])
                use.append(path.stem)
    return uses


def locked():
    """All names in the lock files."""
    return {
        name
        for path in (ROOT / 'requirements' / 'locked').glob('*.txt')
        for name in re.findall(r'^([\w.-]+)==', path.read_text(), re.M)
    }


def licence(stated):
    """What metadata state, as SPDX has it if it is known."""
    field = (stated.get('License') or '').strip().splitlines()
    classifiers = [
        line.split(' :: ')[-1] for line in stated.get_all('Classifier') or []
        if line.startswith('License ::')
    ]
    if stated.get('License-Expression'):
        text = stated['License-Expression']
    elif len(field) == 1 and len(field[0]) < 40 and field != ['UNKNOWN']:
        text = field[0]
    elif classifiers:
        text = ' / '.join(classifiers)
    else:
        text = re.search('(Apache) License|$', ' '.join(field)).group()
    return SPDX.get(text, text)


def main():
    text, uses = FILE.read_text(), direct()
    licences = dict(match.groups() for match in ROW.finditer(text))
    for distribution in metadata.distributions():
        name = canonicalize_name(distribution.name)
        licences[name] = licence(distribution.metadata)
    needed = sorted(locked() | uses.keys())
    unknown = [name for name in needed if name not in licences]
    if unknown:
        print('Run it again where these are installed: ' + ', '.join(unknown))
    rows = ''.join(
        f'| {name} | {licences[name]} | {", ".join(uses.get(name, [OTHERS]))} '
        '|\n' for name in needed if name in licences)
    places = [match.span() for match in ROW.finditer(text)]
    FILE.write_text(text[:places[0][0]] + rows + text[places[-1][1]:])


if __name__ == '__main__':
    main()
