"""Looks at a training script from inside its own process, with the standard library only.

`stoker run` puts this folder first on PYTHONPATH, so that each Python process of the script finds `sitecustomize` here.
`observer` documents what is written down. Nothing here may import Stoker: the script's interpreter may not have it.
"""
