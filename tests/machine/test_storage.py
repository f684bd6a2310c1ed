"""What kind of storage lies behind a path, on mounts and block devices as Linux shows them."""

from pathlib import Path

import pytest

from stoker.machine.storage import storage


class Tree:
    """Builds the part of /proc and /sys that tells of mounts and block devices."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc/self").mkdir(parents=True)
        self.mounts = root / "proc/self/mountinfo"
        self.mounts.write_text("")

    def mount(self, point: str, filesystem: str, source: str, device: str = "0:40") -> None:
        line = f"30 1 {device} / {point} rw,relatime shared:1 - {filesystem} {source} rw\n"
        self.mounts.write_text(self.mounts.read_text() + line)

    def disk(self, name: str, device: str, *, rotational: int = 0, model: str = "", vendor: str = "") -> Path:
        folder = self.root / "sys/devices/block" / name
        for file, body in (("queue/rotational", rotational), ("device/model", model), ("device/vendor", vendor)):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(f"{body}\n")
        return self.link(folder, device)

    def partition(self, disk: Path, name: str, device: str) -> Path:
        folder = disk / name
        folder.mkdir()
        (folder / "partition").write_text("1\n")
        return self.link(folder, device)

    def mapped(self, name: str, device: str, *parts: Path) -> Path:
        folder = self.root / "sys/devices/virtual/block" / name
        (folder / "slaves").mkdir(parents=True)
        for part in parts:
            (folder / "slaves" / part.name).symlink_to(part)
        return self.link(folder, device)

    def link(self, folder: Path, device: str) -> Path:
        for link in (self.root / "sys/dev/block" / device, self.root / "sys/class/block" / folder.name):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(folder)
        return folder

    def kind(self, path: str = "/data/train") -> str:
        return storage(Path(path), self.root).kind


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("filesystem", "source", "kind"),
    [
        ("tmpfs", "tmpfs", "memory"),
        ("nfs4", "server:/export", "network"),
        ("lustre", "10.0.0.1@tcp:/scratch", "network"),
        ("fuse.gcsfuse", "bucket", "network"),
        ("overlay", "overlay", "virtual"),
        ("9p", "share", "virtual"),
        ("zfs", "tank/data", "unknown"),
        ("fuse.encfs", "encfs", "unknown"),
    ],
)
def test_some_file_systems_say_it_themselves(tree: Tree, filesystem: str, source: str, kind: str) -> None:
    tree.mount("/data", filesystem, source)
    assert tree.kind() == kind


@pytest.mark.parametrize(
    ("name", "rotational", "vendor", "model", "kind"),
    [
        ("nvme0n1", 0, "", "Samsung SSD 990 PRO 2TB", "nvme"),
        ("nvme1n1", 0, "", "Amazon EC2 NVMe Instance Storage", "nvme"),
        ("nvme2n1", 0, "", "Amazon Elastic Block Store", "network"),
        ("sda", 0, "ATA", "Samsung SSD 870", "ssd"),
        ("sdb", 1, "ATA", "ST4000DM004-2CV1", "hdd"),
        ("sdc", 1, "QEMU", "QEMU HARDDISK", "virtual"),
        ("sdd", 1, "Google", "PersistentDisk", "network"),
        ("vda", 1, "", "", "virtual"),  # a virtual disk that calls itself rotating: seen on a fast SSD
        ("zram0", 0, "", "", "memory"),
        ("mmcblk0", 0, "", "", "ssd"),
    ],
)
def test_a_disk_is_told_by_its_name_its_model_and_whether_it_rotates(
    tree: Tree, name: str, rotational: int, vendor: str, model: str, kind: str
) -> None:
    tree.disk(name, "8:0", rotational=rotational, vendor=vendor, model=model)
    tree.mount("/data", "ext4", f"/dev/{name}", "8:0")
    assert tree.kind() == kind


def test_a_partition_is_as_its_disk(tree: Tree) -> None:
    tree.partition(tree.disk("sda", "8:0", rotational=1), "sda1", "8:1")
    tree.mount("/data", "ext4", "/dev/sda1", "8:1")
    assert tree.kind() == "hdd"


def test_a_joined_device_is_as_the_slowest_of_its_parts(tree: Tree) -> None:
    fast = tree.disk("nvme0n1", "259:0")
    slow = tree.partition(tree.disk("sda", "8:0", rotational=1), "sda1", "8:1")
    tree.mapped("md0", "9:0", fast, slow)
    tree.mount("/data", "xfs", "/dev/md0", "9:0")
    assert tree.kind() == "hdd"


def test_an_encrypted_volume_on_a_raid_is_followed_down(tree: Tree) -> None:
    joined = tree.mapped("md0", "9:0", tree.disk("nvme0n1", "259:0"), tree.disk("nvme1n1", "259:1"))
    tree.mapped("dm-0", "253:0", joined)
    tree.mount("/data", "xfs", "/dev/mapper/data", "253:0")
    assert tree.kind() == "nvme"


def test_btrfs_has_no_device_number_so_its_source_is_asked(tree: Tree) -> None:
    tree.partition(tree.disk("nvme0n1", "259:0"), "nvme0n1p2", "259:2")
    tree.mount("/data", "btrfs", "/dev/nvme0n1p2", "0:31")
    assert tree.kind() == "nvme"


def test_the_deepest_mount_holds_the_path(tree: Tree) -> None:
    tree.mount("/", "overlay", "overlay")
    tree.mount("/data", "nfs4", "server:/export")
    tree.mount("/data/train/cache", "tmpfs", "tmpfs")
    found = storage(Path("/data/train"), tree.root)
    assert (found.mount, found.filesystem, found.device, found.kind) == ("/data", "nfs4", "server:/export", "network")
    assert tree.kind("/data/train/cache/x") == "memory"
    assert tree.kind("/database") == "virtual"  # not under /data, though it begins so


def test_of_two_mounts_on_one_point_the_last_is_seen(tree: Tree) -> None:
    tree.mount("/data", "nfs4", "server:/export")
    tree.mount("/data", "tmpfs", "tmpfs")
    assert tree.kind() == "memory"


def test_nothing_known_is_said_to_be_unknown(tree: Tree) -> None:
    assert tree.kind() == "unknown"


def test_this_machine_names_the_mount_of_a_real_folder(tmp_path: Path) -> None:
    found = storage(tmp_path)
    assert tmp_path.resolve().is_relative_to(found.mount)
    assert found.path == str(tmp_path.resolve())


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm here")
def test_shared_memory_is_memory() -> None:
    assert storage(Path("/dev/shm")).kind == "memory"
