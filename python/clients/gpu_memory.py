"""What `gpu.py` copies between: a GPU (or, for trying it out, this host in its place), and host memory of the kinds that engines have.

What can be done with a kind is found out by doing it: a maker that cannot make its kind raises, and says why.
"""

import contextlib
import mmap
import os
import time

import torch

# What is in memory before something is read into it: no page of random bytes is all of these.
STALE = 0xA5
# Direct reads go straight into memory that begins at a multiple of this.
ALIGNED = 4096


class Device:
    """Where pages come from, and where what was read back is compared. `cpu` stands in for a GPU, and all host memory is plain then."""

    def __init__(self, name):
        self.on_gpu = name == "cuda"
        if self.on_gpu and not torch.cuda.is_available():
            raise SystemExit("torch sees no GPU; --device cpu tries the script without one")
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.on_gpu else torch.device("cpu")
        self.stream = torch.cuda.Stream() if self.on_gpu else None

    def random(self, pages, page_bytes, seed):
        """Pages of random bytes, made there: the same for the same seed."""
        made = torch.Generator(self.device).manual_seed(seed)
        return torch.randint(-(2**63), 2**63 - 1, (pages, page_bytes // 8), dtype=torch.int64, device=self.device, generator=made)

    def begin_copy(self, source, destination):
        """Have the stream copy it; an event behind it. From and to memory that is not page-locked it may have happened on return."""
        if not self.on_gpu:
            destination.copy_(source)
            return None
        with torch.cuda.stream(self.stream):
            destination.copy_(source, non_blocking=True)
            return self.stream.record_event()

    def copied(self, source, destination):
        """Copy it, all of it there; the seconds."""
        self.settle()
        begun = time.perf_counter()
        self.wait(self.begin_copy(source, destination))
        return time.perf_counter() - begun

    def wait(self, event):
        if event is not None:
            event.synchronize()

    def settle(self):
        """Whatever was begun has happened."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def spoil(self, pages):
        """Let nothing that was there before pass for what comes."""
        pages.fill_(-1)
        self.settle()

    def differing(self, pages, at, source, of):
        """Which pages `at` are not bit for bit those `of` the source: their places in the two lists."""
        here, there = (torch.tensor(places, device=self.device) for places in (at, of))
        differ = (pages[here] != source[there]).any(dim=1)
        return differ.nonzero().flatten().tolist()

    def forget_error(self):
        """A call that the GPU's runtime refused is otherwise told to the next one that has nothing to do with it."""
        for _ in range(2 if self.on_gpu else 0):
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self.device)
                torch.cuda.synchronize()

    def told(self):
        here = {"device": str(self.device), "torch": torch.__version__, "cuda": torch.version.cuda}
        if self.on_gpu:
            there = torch.cuda.get_device_properties(self.device)
            here |= {"name": there.name, "memory_bytes": there.total_memory}
        return here


class Host:
    """A pool in host memory, as a tensor of bytes."""

    def __init__(self, tensor, fd=None, undo=None):
        assert tensor.data_ptr() % ALIGNED == 0
        self.tensor, self.fd, self.undo = tensor, fd, undo
        self.address, self.length = tensor.data_ptr(), tensor.numel()

    def pages(self, pages, page_bytes):
        """Its first pages, as the device has them."""
        return self.tensor[: pages * page_bytes].view(torch.int64).view(pages, page_bytes // 8)

    def spoil(self):
        self.tensor.fill_(STALE)

    def told(self):
        return {"bytes": self.length, "is_pinned": self.tensor.is_pinned(), **mapping_of(self.address)}

    def release(self):
        if self.undo is not None:
            self.undo()


def plain(device, length):
    """Anonymous memory, as malloc has it for a pool of that size, but at a multiple of a page."""
    return Host(touched(anonymous(length)))


def huge(device, length):
    """Anonymous memory in huge pages, which the GPU's runtime locks."""
    memory = anonymous(length)
    memory.madvise(mmap.MADV_HUGEPAGE)
    host = Host(touched(memory))
    there = host.told().get("AnonHugePages", "nothing")
    if int(there.split()[0] if there[0].isdigit() else 0) << 10 < length // 2:
        raise RuntimeError(f"of {length >> 10} kB the kernel has {there} in huge pages")
    return lock(device, host)


def anonymous(length):
    return mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def pinned(device, length):
    """As vLLM's offloading to host memory has it."""
    # Without a GPU nothing is page-locked.
    tensor = torch.empty(length, dtype=torch.uint8, pin_memory=device.on_gpu)
    if skip := -tensor.data_ptr() % ALIGNED:
        # Longer only where it has to be: torch makes it twice as long behind a power of two.
        tensor = torch.empty(length + ALIGNED, dtype=torch.uint8, pin_memory=device.on_gpu)
        skip = -tensor.data_ptr() % ALIGNED
        tensor = tensor[skip : skip + length]
    tensor.fill_(0)
    return Host(tensor)


def locked(device, length):
    """Anonymous memory that the GPU's runtime locks, as SGLang's host pools have it."""
    return lock(device, plain(device, length))


def shared(device, length):
    """A memfd, which a store process looks at."""
    fd = os.memfd_create("pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, length)
    return Host(touched(mmap.mmap(fd, length)), fd=fd)


def shared_locked(device, length):
    return lock(device, shared(device, length))


def touched(memory):
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    tensor.fill_(0)
    return tensor


def lock(device, host):
    if not device.on_gpu:
        return host
    runtime = torch.cuda.cudart()
    said = int(runtime.cudaHostRegister(host.address, host.length, 0))
    if said != 0:
        device.forget_error()
        raise RuntimeError(f"cudaHostRegister says {said}")
    host.undo = lambda: runtime.cudaHostUnregister(host.address)
    return host


# By their names in the table. The first is what the others are compared with; the second is the same again, and says how far that differs
# from itself: pages that happen to lie side by side are fewer pieces to a drive.
OWN = {"pageable": plain, "pageable, another": plain, "pin_memory": pinned, "cudaHostRegister": locked, "huge pages, cudaHostRegister": huge}
PROCESS = {"pageable": plain, "pin_memory": pinned, "memfd": shared, "memfd, cudaHostRegister": shared_locked}


def mapping_of(address):
    """What the kernel says of the mapping there: its flags, and how much of it lies in huge pages."""
    wanted = {"Rss", "AnonHugePages", "ShmemPmdMapped", "Locked", "VmFlags"}
    found, inside = {}, False
    with contextlib.suppress(OSError, ValueError), open("/proc/self/smaps") as maps:
        for line in maps:
            first, _, rest = line.partition(" ")
            if "-" in first and not first.endswith(":"):
                start, end = (int(part, 16) for part in first.split("-"))
                inside = start <= address < end
                if inside:
                    found["mapped_from"] = (rest.split() + [""])[4]
            elif inside and first.rstrip(":") in wanted:
                found[first.rstrip(":")] = rest.strip()
    return found


def buffers_of_rings():
    """How many stretches of memory this process's rings have registered, by the kernel's own word; None where it says nothing."""
    counts = []
    for fd in os.listdir("/proc/self/fdinfo"):
        with contextlib.suppress(OSError, ValueError):
            if "io_uring" in os.readlink(f"/proc/self/fd/{fd}"):
                with open(f"/proc/self/fdinfo/{fd}") as info:
                    counts += [int(line.split()[1]) for line in info if line.startswith("UserBufs:")]
    return sum(counts) if counts else None
