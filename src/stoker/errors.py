"""Every error that Stoker raises on purpose, in one tree.

StokerError                  one clear sentence for the person at the keyboard; the command line exits with `status`
├── InputError               what was given cannot be used: a name, a number, a file, a function
└── MachineError             what we run on cannot do it: a full disk, a missing package, a folder we may not write
    ├── MissingPackage       an optional package is not installed; says which extra brings it
    └── OutOfTime            an answer was not found within the time that it was given
Interrupted                  the person pressed Ctrl-C; everything we started has been ended. Beside the tree, and no
                             `Exception`: whatever runs when it is raised would swallow those
"""


class StokerError(Exception):
    """The base of the tree: catch this to catch all of them."""

    status = 1


class InputError(StokerError):
    """What was given cannot be used."""


class MachineError(StokerError):
    """What we run on cannot do it."""


class MissingPackage(MachineError):
    """An optional package is not installed."""


class OutOfTime(MachineError):
    """An answer was not found within the time that it was given."""


class Interrupted(BaseException):
    """The person pressed Ctrl-C, or ended us from outside."""

    def __init__(self, sentence: str, *, status: int = 130) -> None:
        super().__init__(sentence)
        self.status = status
