"""One that was there before."""

import builtins

builtins.customised = "by the user's own sitecustomize"
