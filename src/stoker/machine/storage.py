"""What kind of storage lies behind a path: a disk, memory, a network, or something a virtual machine hides."""

from pathlib import Path
from typing import Literal

from stoker.machine.proc import SLASH, Mount, mounts, number, text
from stoker.records import Storage

Kind = Literal["nvme", "ssd", "hdd", "memory", "network", "virtual", "unknown"]

_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "ocfs2", "gfs2"),
    *("orangefs", "pvfs2", "wekafs", "panfs", "daos", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.mountpoint-s3"),
    *("fuse.rclone", "fuse.juicefs", "fuse.JuiceFS", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.blobfuse2"),
    *("fuse.lustre", "fuse.dfuse", "fuse.goofys", "fuse.alluxio-fuse", "fuse.cvmfs2", "fuse.moosefs"),
}
# Folders of a host seen by its guest, and a container's layers: the device behind them is out of sight.
_VIRTUAL = {"overlay", "aufs", "virtiofs", "9p", "vboxsf", "fuse.vmhgfs-fuse", "prl_fs", "fuse.fuse-overlayfs"}
# Clouds show a network volume as an NVMe or SCSI disk; its model gives it away.
_NETWORK_MODELS = ("amazon elastic block store", "nvme_card-pd", "msft nvme accelerator", "persistentdisk")
_VIRTUAL_MODELS = ("qemu", "vmware", "virtual disk", "vbox", "virtio", "msft", "xen")
_SLOWEST_FIRST: tuple[Kind, ...] = ("hdd", "network", "virtual", "unknown", "ssd", "nvme", "memory")


def storage(path: Path, root: Path = SLASH) -> Storage:
    """The mount that holds `path`, and what it is made of. A path that does not exist yet is where it would be."""
    absolute = path.resolve() if root == SLASH else path
    mount = _mount_of(absolute, root)
    if mount is None:
        return Storage(path=str(absolute), mount="/", filesystem="unknown", device="unknown", kind="unknown")
    return Storage(
        path=str(absolute),
        mount=mount.point,
        filesystem=mount.filesystem,
        device=mount.source,
        kind=_kind(mount, root),
    )


def _mount_of(path: Path, root: Path) -> Mount | None:
    """The deepest mount point above the path; of several on one point, the last mounted is the one seen."""
    best: Mount | None = None
    for mount in mounts(root):
        if path.is_relative_to(mount.point) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _kind(mount: Mount, root: Path) -> Kind:
    if mount.filesystem in _MEMORY:
        return "memory"
    if mount.filesystem in _NETWORK:
        return "network"
    if mount.filesystem in _VIRTUAL:
        return "virtual"
    folder = _block_folder(mount, root)
    return _block_kind(folder) if folder else "unknown"


def _block_folder(mount: Mount, root: Path) -> Path | None:
    """The device's folder under /sys. Btrfs and its like number no device, so there the source's name is asked too."""
    candidates = [root / "sys/dev/block" / mount.device]
    if mount.source.startswith("/dev/"):
        source = Path(mount.source).resolve() if root == SLASH else Path(mount.source)
        candidates.append(root / "sys/class/block" / source.name)
    return next((folder.resolve() for folder in candidates if folder.is_dir()), None)


def _block_kind(folder: Path) -> Kind:
    """A partition is as its disk; a mapped or joined device is as the slowest it is made of."""
    if (folder / "partition").exists():
        folder = folder.parent
    parts = [part.resolve() for part in (folder / "slaves").iterdir()] if (folder / "slaves").is_dir() else []
    if parts:
        return min((_block_kind(part) for part in parts), key=_SLOWEST_FIRST.index)
    model = f"{text(folder / 'device/vendor') or ''} {text(folder / 'device/model') or ''}".lower()
    return _disk_kind(folder.name, model, number(folder / "queue/rotational"))


def _disk_kind(name: str, model: str, rotational: int | None) -> Kind:
    if any(known in model for known in _NETWORK_MODELS) or name.startswith(("nbd", "rbd", "drbd")):
        return "network"
    if name.startswith(("zram", "ram", "pmem")):
        return "memory"
    # A virtual disk calls itself rotating or not as its host pleases; it proves nothing.
    if any(known in model for known in _VIRTUAL_MODELS) or name.startswith(("vd", "xvd", "loop")):
        return "virtual"
    if name.startswith("nvme"):
        return "nvme"
    if name.startswith("mmcblk") or rotational == 0:
        return "ssd"
    return "hdd" if rotational == 1 else "unknown"
