"""What of an item's preparation is the same every time, so that it could be kept: decoding, and the transforms after it
up to the first that is not known to be deterministic."""

from typing import NamedTuple

from stoker.records import Record

DETERMINISTIC = frozenset(
    {
        "CenterCrop",
        "ConvertBoundingBoxFormat",
        "ConvertImageDtype",
        "FiveCrop",
        "Grayscale",
        "ImageClassification",
        "LinearTransformation",
        "Normalize",
        "ObjectDetection",
        "OpticalFlow",
        "PILToTensor",
        "Pad",
        "Resize",
        "SemanticSegmentation",
        "TenCrop",
        "TimeAfterChannels",
        "ToDtype",
        "ToImage",
        "ToPILImage",
        "ToPureTensor",
        "ToTensor",
        "UniformTemporalSubsample",
        "VideoClassification",
    }
)
"""Transforms of torchvision (and one of ours) that return the same for the same item. Any other name may be random."""


class CachingRules(Record, frozen=True):
    """When more than decoded items could be kept."""

    own_share: float = 0.05
    """If a dataset's own code takes more of an item's time than this, it may augment: nothing behind it is kept."""


RULES = CachingRules()


class Prefix(NamedTuple):
    """The part of an item's preparation that could be kept."""

    share: float
    """Its share of an item's time, reading left out."""
    item_bytes: float
    """What it returns for an item."""
    last: str | None
    """The last transform that belongs to it; None if only decoding does."""
    stops_at: str | None
    """The transform that ends it; None if nothing comes after it."""


def deterministic_prefix(shares: dict[str, float], output_bytes: dict[str, float]) -> Prefix | None:
    """The prefix, from the share of each stage of loading in an item's time, in the order in which they run.

    None if decoding was not seen to return images or tensors: what it returns may then be chosen at random, such as a
    clip of a video.
    """
    if "decode" not in output_bytes or "decode" not in shares:
        return None
    found = Prefix(shares["decode"], output_bytes["decode"], None, None)
    for stage in shares:
        kind, _, member = stage.partition(".")
        if kind != "transform" or not member:
            continue
        unknown = member.partition(".")[0] not in DETERMINISTIC or stage not in output_bytes
        if unknown or shares.get("item", 0.0) > RULES.own_share:
            return found._replace(stops_at=member)
        found = Prefix(found.share + shares[stage], output_bytes[stage], member, None)
    return found
