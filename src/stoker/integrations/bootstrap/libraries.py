"""Which calls read, decode and transform: in well-known libraries, and in a dataset's own code."""

import inspect
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType, FunctionType
from typing import Any

from . import patch
from .patch import Edit, NotPatched, Patch
from .stages import Site, Stages, name_of

# Module, function, stage. Their own source is what is changed, so it does not matter how they were imported.
_SPANS = (
    ("PIL.Image", "open", "read"),
    ("PIL.Image", "Image.convert", "decode"),
    ("PIL.Image", "Image.resize", "transform.resize"),
    ("PIL.Image", "Image.thumbnail", "transform.thumbnail"),
    ("PIL.Image", "Image.rotate", "transform.rotate"),
    ("PIL.Image", "Image.transpose", "transform.transpose"),
    ("torchvision.io.image", "read_file", "read"),
    ("torchvision.io.image", "decode_image", "decode"),
    ("torchvision.io.image", "decode_jpeg", "decode"),
    ("torchvision.io.image", "decode_png", "decode"),
    ("torchvision.io.video", "read_video", "decode"),
    ("numpy", "load", "read"),
    ("torch.serialization", "load", "read"),
    ("h5py._hl.dataset", "Dataset.__getitem__", "read"),
    ("h5py._hl.files", "File.__init__", "read"),
    ("soundfile", "SoundFile.__init__", "read"),
    ("soundfile", "SoundFile.read", "decode"),
    ("torchaudio", "load", "decode"),
    ("librosa.core.audio", "load", "decode"),
    ("librosa.core.audio", "resample", "transform.resample"),
    ("imageio.v2", "imread", "decode"),
    ("imageio.v3", "imread", "decode"),
    ("skimage.io._io", "imread", "decode"),
    ("tifffile.tifffile", "imread", "decode"),
    ("pydicom.filereader", "dcmread", "read"),
    ("nibabel.loadsave", "load", "read"),
    ("turbojpeg", "TurboJPEG.decode", "decode"),
    ("tarfile", "TarFile.next", "read"),
    ("tarfile", "_FileInFile.read", "read"),
    ("zipfile", "ZipExtFile.read", "read"),
    ("gzip", "GzipFile.read", "decode"),
    ("webdataset.autodecode", "Decoder.__call__", "decode"),
    ("datasets.formatting.formatting", "query_table", "read"),
    ("datasets.features.image", "Image.decode_example", "decode"),
    ("datasets.features.audio", "Audio.decode_example", "decode"),
    ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase.__call__", "transform.tokenizer"),
    ("transformers.image_processing_base", "BaseImageProcessor.__call__", "transform.image_processor"),
)
# Module, function, the chain of transforms that it loops over.
_CHAINS = (
    ("torchvision.transforms.transforms", "Compose.__call__", "self.transforms"),
    ("torchvision.transforms.v2._container", "Compose.forward", "self.transforms"),
    ("albumentations.core.composition", "Compose.__call__", "self.transforms"),
)
# Module, function, a call in it, stage.
_CALLS = (
    ("PIL.ImageFile", "ImageFile.load", "read", "read"),
    ("webdataset.filters", "_map", "f", "transform.map"),
    ("webdataset.filters", "_map_dict", "f", "transform.map"),
    ("webdataset.filters", "_map_tuple", "args[i]", "transform.map"),
    ("datasets.formatting.formatting", "CustomFormatter.format_row", "self.transform", "transform.set_transform"),
    ("datasets.formatting.formatting", "CustomFormatter.format_batch", "self.transform", "transform.set_transform"),
)
_AROUND = {("PIL.ImageFile", "ImageFile.load"): "decode"}

# What a call in a dataset's code is, by the module of what it calls, and by its name where that says more.
_READERS = "lmdb _io mmap sqlite3 zarr fsspec s3fs boto3 botocore requests urllib redis pyarrow pandas polars posix"
_DECODERS = "zlib bz2 lzma blosc blosc2 zstandard lz4 snappy pickle _pickle json _json orjson msgpack simplejpeg"
_MORE_DECODERS = "turbojpeg pyvips imagecodecs rawpy av decord torchcodec torchaudio soundfile audioread pydub cbor2"
_TRANSFORMERS = "albumentations kornia imgaug monai torchio scipy librosa skimage tokenizers transformers tiktoken cv2"
_MORE_TRANSFORMERS = "sentencepiece audiomentations torch_audiomentations nltk spacy torchvision.transforms"
_MODULES = {
    **dict.fromkeys(_READERS.split(), "read"),
    **dict.fromkeys(("rasterio", "nibabel", "pydicom", "SimpleITK", "openslide", "trimesh", "laspy"), "read"),
    **dict.fromkeys(f"{_DECODERS} {_MORE_DECODERS}".split(), "decode"),
    **dict.fromkeys(f"{_TRANSFORMERS} {_MORE_TRANSFORMERS}".split(), "transform"),
    **dict.fromkeys(("torch.nn.functional", "torchaudio.transforms", "torchaudio.functional"), "transform"),
}
_IN_MODULE = {
    **{("cv2", name): "decode" for name in ("imread", "imdecode", "cvtColor", "read", "retrieve", "VideoCapture")},
    **{("numpy", name): "read" for name in ("load", "fromfile", "memmap")},
    ("librosa", "load"): "decode",
    ("skimage", "imread"): "decode",
}
_BY_NAME = {
    **dict.fromkeys(("read", "readinto", "read_bytes", "read_text", "readline"), "read"),
    **dict.fromkeys(("transform", "transforms", "target_transform", "augment", "augmentation"), "transform"),
    **dict.fromkeys(("preprocess", "tokenizer", "processor", "image_processor"), "transform"),
}
_METHODS, _DEPTH, _FUNCTIONS = ("__getitem__", "__getitems__", "__iter__"), 4, 24

_done: set[tuple[str, str]] = set()
_standard = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
_installed = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
_installed.update(getattr(site, "getsitepackages", list)())
_library = (*_standard, *_installed, os.path.dirname(os.path.abspath(__file__)))
_is_library: dict[str, bool] = {}


def is_library(file: str) -> bool:
    """Whether a source file belongs to Python or to an installed package, not to the user."""
    known = _is_library.get(file)
    if known is None:
        parts = file.replace("\\", "/").split("/")
        known = file.startswith("<frozen") or "site-packages" in parts or "dist-packages" in parts
        known = _is_library[file] = known or file.startswith(_library)
    return known


def forget() -> None:
    """All patches were taken back."""
    _done.clear()


def library_patches(stages: Stages) -> list[Patch]:
    """What times the readers, decoders and transforms of the libraries that were imported since the last call."""
    made = []
    for module_name, path, edit in _edits(stages):
        if (module_name, path) in _done or module_name not in sys.modules:
            continue
        _done.add((module_name, path))
        made += _patches(function_of(module_name, path), edit, constants=False)
    return made


def _edits(stages: Stages) -> Iterator[tuple[str, str, Edit]]:
    for module_name, path, stage in _SPANS:
        kind = "operation" if stage.startswith("transform.") else stage
        yield module_name, path, patch.span(stages, f"{stage!r}, {kind!r}")
    for module_name, path, chain in _CHAINS:
        yield module_name, path, patch.ticks(stages, chain)
    for module_name, path, called, stage in _CALLS:
        if module_name in sys.modules and (module_name, path) not in _done:
            edit = patch.calls(_named(stages, called, stage))
            around = _AROUND.get((module_name, path))
            yield module_name, path, patch.both(patch.span(stages, repr(around)), edit) if around else edit


def _named(stages: Stages, called: str, stage: str) -> Any:
    site = MappedSite(stages, called, stage) if called == "f" else Site(stages, called, lambda text, frame: stage)

    def choose(node: Any) -> Site | None:
        if patch.written(node.func) != called:
            return None
        if site not in stages.sites:
            stages.sites.append(site)
        return site

    return choose


class MappedSite(Site):
    """A call of whatever function a pipeline maps: a decoder of the library's own, or a transform of the user's."""

    def __init__(self, stages: Stages, text: str, stage: str) -> None:
        super().__init__(stages, text, None)
        self._stage = stage

    def enter(self) -> None:
        mapped = sys._getframe(1).f_locals.get(self._text)
        own = _module_of(mapped).startswith("webdataset.")
        self._tokens.append(self._stages.enter("decode" if own else f"{self._stage}.{name_of(mapped)}"))


def function_of(module_name: str, path: str) -> FunctionType | None:
    """An imported module's function or method, behind what wraps it."""
    thing: Any = sys.modules.get(module_name)
    for name in path.split("."):
        thing = vars(thing).get(name) if inspect.isclass(thing) else getattr(thing, name, None)
    return _plain(thing)


def _plain(thing: Any) -> FunctionType | None:
    if isinstance(thing, (staticmethod, classmethod)):
        thing = thing.__func__
    for _ in range(8):
        inner = getattr(thing, "__wrapped__", None)
        if inner is None:
            break
        thing = inner
    return thing if isinstance(thing, FunctionType) else None


def _patches(function: FunctionType | None, edit: Edit, *, constants: bool) -> list[Patch]:
    try:
        return [Patch(function, edit, constants=constants)] if function is not None else []
    except NotPatched:
        return []  # its time stays part of the item's


# ---------------------------------------------------------------- a dataset's own code


class DatasetCode:
    """The patches of datasets' own functions, each made once."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._known: dict[FunctionType, tuple[list[Patch], list[str]]] = {}

    def patches(self, dataset: Any) -> list[Patch]:
        """What times the calls in the code of a dataset, of the datasets inside it, and of the helpers of the user's
        that it calls; and the members of transforms that the user chains in a class of his own."""
        found: dict[FunctionType, list[Patch]] = {}
        rest = [(function, 0) for each in _datasets(dataset, 0) for function in _functions(each)]
        for function, depth in rest:
            if function not in found and len(found) < _FUNCTIONS:
                found[function], called = self._calls(function)
                if depth < _DEPTH:
                    rest += [(inner, depth + 1) for inner in _helpers(function, called)]
        for function in _chains(dataset):
            if function not in found:
                found[function] = self._chain(function)
        return [each for made in found.values() for each in made]

    def all(self) -> list[Patch]:
        """Every patch that was made."""
        return [each for made, _ in self._known.values() for each in made]

    def _calls(self, function: FunctionType) -> tuple[list[Patch], list[str]]:
        if function not in self._known:
            called: list[str] = []
            edit = patch.calls(_sites(self._stages, called))
            self._known[function] = (_patches(function, edit, constants=True), called)
        return self._known[function]

    def _chain(self, function: FunctionType) -> list[Patch]:
        if function not in self._known:
            self._known[function] = (_patches(function, patch.called_loops(self._stages), constants=True), [])
        return self._known[function][0]


def _attributes(thing: Any) -> dict[str, Any]:
    found = getattr(thing, "__dict__", None)
    return found if isinstance(found, dict) else {}


def _is_dataset(thing: Any) -> bool:
    return any(base.__name__ == "Dataset" or "IterDataPipe" in base.__name__ for base in type(thing).__mro__)


def _datasets(dataset: Any, depth: int) -> Iterator[Any]:
    """A dataset and those that it wraps."""
    yield dataset
    if depth < _DEPTH:
        for value in list(_attributes(dataset).values()):
            for each in value[:8] if isinstance(value, (list, tuple)) else (value,):
                if _is_dataset(each):
                    yield from _datasets(each, depth + 1)


def _functions(dataset: Any) -> Iterator[FunctionType]:
    for name in _METHODS:
        function = _plain(getattr(type(dataset), name, None))
        if function is not None and not function.__module__.startswith(("torch.utils.data", "datasets.")):
            yield function


def _sites(stages: Stages, called: list[str]) -> Any:
    def choose(node: Any) -> Site | None:
        text = patch.written(node.func)
        if not text or text in ("super", "locals", "vars") or len(text) > 60:
            return None
        called.append(text)
        site = Site(stages, f"{text}@{node.lineno}", _classify)
        stages.sites.append(site)
        return site

    return choose


def _helpers(function: FunctionType, called: list[str]) -> Iterator[FunctionType]:
    """The user's own functions among what a function calls."""
    owner = function.__qualname__.rpartition(".")[0]
    around = function.__globals__.get(owner)
    for text in called:
        name = text[5:] if text.startswith("self.") else text
        thing = getattr(around, name, None) if text.startswith("self.") else function.__globals__.get(name)
        inner = _plain(thing) if "." not in name and not inspect.isclass(thing) else None
        if inner is not None and not is_library(inner.__code__.co_filename):
            yield inner


def _chains(dataset: Any) -> Iterator[FunctionType]:
    """How the user's own chains of transforms, held by a dataset, are called."""
    for each in _datasets(dataset, 0):
        for value in list(_attributes(each).values()):
            for name in ("__call__", "forward"):
                function = _plain(getattr(type(value), name, None))
                if function is not None and not is_library(function.__code__.co_filename):
                    yield function


def _classify(text: str, frame: FrameType) -> str:
    """The stage of a call, by what is called; `item.` and the call where that does not tell."""
    expression = text.partition("@")[0]
    name = expression.rpartition(".")[2]
    if expression in ("open", "io.open"):
        return "read"
    thing, module = _called(expression, frame)
    stage = _IN_MODULE.get((module.partition(".")[0], name)) or _by_module(module) or _BY_NAME.get(name)
    if stage == "transform":
        return f"transform.{name if thing is None or name not in _BY_NAME else name_of(thing)}"
    return stage or f"item.{text}"


def _by_module(module: str) -> str | None:
    while module:
        if module in _MODULES:
            return _MODULES[module]
        module = module.rpartition(".")[0]
    return None


def _called(expression: str, frame: FrameType) -> tuple[Any, str]:
    """What an expression of names and attributes calls, and the module that this belongs to: for a method, its
    object's. No property is run to find out; what cannot be followed is (None, "")."""
    first, *rest = expression.split(".")
    places = (frame.f_locals, frame.f_globals, frame.f_builtins)
    thing = next((place[first] for place in places if first in place), None)
    module = _module_of(thing)
    for name in rest:
        held = _attributes(thing).get(name)
        if held is None:
            held = inspect.getattr_static(type(thing), name, None)
            if held is None or isinstance(held, property):
                return None, module if name == rest[-1] else ""
            module = _module_of(type(thing))
        else:
            module = _module_of(held) or module
        thing = held
    return thing, module


def _module_of(thing: Any) -> str:
    """Where a function, a class or an object comes from."""
    if inspect.ismodule(thing):
        return thing.__name__
    if isinstance(thing, type) or hasattr(type(thing), "__get__") or inspect.isbuiltin(thing):
        module = getattr(thing, "__module__", None)
    else:
        thing = type(thing)
        module = thing.__module__
    if module in (None, "", "builtins"):
        lmdb = sys.modules.get("lmdb")  # whose classes do not say that they are its own
        kinds = [getattr(lmdb, name, None) for name in ("Environment", "Transaction", "Cursor")]
        return "lmdb" if lmdb is not None and thing in kinds else ""
    return str(module)
