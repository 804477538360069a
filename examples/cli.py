"""absl flags as these programs want them: quiet, and exit status 2 for bad ones."""

from __future__ import annotations

import sys
from collections.abc import Callable

from absl import flags, logging


def flags_parser(program: str) -> Callable[[list[str]], list[str]]:
    """For `absl.app.run(main, flags_parser=...)`; ``program`` is how the user started it."""

    def parse(arguments: list[str]) -> list[str]:
        try:
            rest = flags.FLAGS(arguments)
        except flags.Error as error:
            sys.stderr.write(f"{program}: {error}\n  {program} --help lists the flags\n")
            sys.exit(2)
        if flags.FLAGS["verbosity"].using_default_value:
            flags.FLAGS.verbosity = logging.WARNING  # absl's INFO would show JAX's own log
        return rest

    return parse
