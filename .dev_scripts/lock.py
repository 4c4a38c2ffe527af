# Copyright (c) mmweightformer contributors. All rights reserved.
"""Write down the environment that runs this, as one that was tested.

The file in requirements/locked has each installed package, at its version and
with the SHA-256 of all of that release's files, as the package index gives
them, so that it serves other platforms than this one as well. ``make install
LOCKED=1`` installs it. Run it in each environment after the tests have passed
there, with uv on the PATH:

    .venv/bin/python .dev_scripts/lock.py
"""
import re
import subprocess
import sys
from collections import defaultdict
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
# pip is there before anything is installed; uv and this package are no part.
LEFT_OUT = ('mmweightformer', 'pip', 'uv')
HEADER = """\
# The {stack} stack on Python {python} as it was tested, with the SHA-256 of
# each release's files. Written by .dev_scripts/lock.py.
"""


def installed():
    """Distributions by name; the first on the path is the one in use."""
    found = {}
    for distribution in metadata.distributions():
        name = canonicalize_name(distribution.name)
        if name not in LEFT_OUT:
            found.setdefault(name, distribution)
    return found


def platform_markers(found):
    """Of packages that are needed on some platforms only, by name."""
    needed = defaultdict(dict)
    for name, distribution in found.items():
        for line in distribution.requires or []:
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or marker.evaluate({'extra': ''}):
                needed[canonicalize_name(requirement.name)][name] = marker

    def marker_of(name, path=()):
        """What all that need a package agree on, or None."""
        markers = set()
        for by, marker in needed[name].items():
            if by in path:
                continue
            if 'platform' not in str(marker):
                marker = marker_of(by, (*path, name))
            markers.add(str(marker) if marker else None)
        return markers.pop() if len(markers) == 1 else None

    return {name: marker_of(name) for name in found}


def hashes(pins):
    """The hashes of all files of each release, by its pin."""
    result = subprocess.run([
        'uv', 'pip', 'compile', '-', '--no-deps', '--generate-hashes',
        '--no-header', '--no-annotate', '--python', sys.executable
    ],
                            input='\n'.join(pins),
                            stdout=subprocess.PIPE,
                            check=True,
                            text=True)
    # An entry goes on in indented lines.
    entries = re.findall(r'^(\S+).*\n((?:\s.*\n)*)', result.stdout, re.M)
    return {pin: re.findall(r'--hash=\S+', more) for pin, more in entries}


def main():
    found = installed()
    stack = 'maintained' if 'onedl-mmengine' in found else 'original'
    python = '%d.%d' % sys.version_info[:2]
    pins = {
        f'{name}=={distribution.version}': name
        for name, distribution in sorted(found.items())
    }
    markers = platform_markers(found)
    lines = HEADER.format(stack=stack, python=python).splitlines()
    known = hashes(pins)
    for pin, name in pins.items():
        marker = f' ; {markers[name]}' if markers[name] else ''
        lines.append(f'{pin}{marker} \\\n    ' + ' \\\n    '.join(known[pin]))
    name = f'{stack}-py{python.replace(".", "")}.txt'
    path = ROOT / 'requirements' / 'locked' / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('\n'.join(lines) + '\n')
    print(f'{path}: {len(pins)} packages')


if __name__ == '__main__':
    main()
