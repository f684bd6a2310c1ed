"""Looks into loader workers, with wrappers that are removed again."""

from stoker.measure.spy.wrappers import Parcel as Parcel
from stoker.measure.spy.wrappers import Watched as Watched
from stoker.measure.spy.wrappers import installed as installed
from stoker.measure.spy.wrappers import paused as paused
