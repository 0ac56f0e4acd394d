"""The memory between which `gpu.py` copies: a GPU (or this host in its place, to try it), and host
memory of the kinds that engines use.

Support for a kind is determined by creating it: the function raises an error with the reason if it
cannot.
"""

import contextlib
import mmap
import os
import time

import torch

# Content of memory before a read: no page of random bytes consists of these.
STALE = 0xA5
# Direct reads require memory at a multiple of this.
ALIGNED = 4096


class Device:
    """The source of pages, and the place where pages read back are compared. `cpu` replaces a GPU,
    and all host memory is plain then."""

    def __init__(self, name):
        self.on_gpu = name == "cuda"
        if self.on_gpu and not torch.cuda.is_available():
            raise SystemExit("torch sees no GPU; --device cpu tries the script without one")
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.on_gpu else torch.device("cpu")
        self.stream = torch.cuda.Stream() if self.on_gpu else None
        self.name = str(self.device)

    def random(self, pages, page_bytes, seed):
        """Pages of random bytes, generated there: equal for equal seeds."""
        made = torch.Generator(self.device).manual_seed(seed)
        return torch.randint(-(2**63), 2**63 - 1, (pages, page_bytes // 8), dtype=torch.int64, device=self.device, generator=made)

    def begin_copy(self, source, destination):
        """Start a copy on the stream; returns an event after it. For memory that is not
        page-locked, the copy may be complete on return."""
        if not self.on_gpu:
            destination.copy_(source)
            return None
        with torch.cuda.stream(self.stream):
            destination.copy_(source, non_blocking=True)
            return self.stream.record_event()

    def copied(self, source, destination):
        """Copy, and wait for completion; returns the seconds."""
        self.settle()
        begun = time.perf_counter()
        self.wait(self.begin_copy(source, destination))
        return time.perf_counter() - begun

    def wait(self, event):
        if event is not None:
            event.synchronize()

    def settle(self):
        """Wait until all submitted operations are complete."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def spoil(self, pages):
        """Overwrite the pages, so that earlier content cannot pass for a read."""
        pages.fill_(-1)
        self.settle()

    def differing(self, pages, at, source, of):
        """The pages `at` that differ from the pages `of` of the source, as positions in the two
        lists."""
        here, there = (torch.tensor(places, device=self.device) for places in (at, of))
        differ = (pages[here] != source[there]).any(dim=1)
        return differ.nonzero().flatten().tolist()

    def forget_error(self):
        """Clear an error of the GPU's runtime, which the next, unrelated call would report
        otherwise."""
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
        """Its first pages, in the device's form."""
        return self.tensor[: pages * page_bytes].view(torch.int64).view(pages, page_bytes // 8)

    def spoil(self):
        self.tensor.fill_(STALE)

    def told(self):
        return {"bytes": self.length, "is_pinned": self.tensor.is_pinned(), **mapping_of(self.address)}

    def release(self):
        if self.undo is not None:
            self.undo()


def plain(device, length):
    """Anonymous memory, as from malloc for a pool of that size, but page-aligned."""
    return Host(touched(anonymous(length)))


def huge(device, length):
    """Anonymous memory in huge pages, locked by the GPU's runtime."""
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
    """The memory of vLLM's offloading."""
    # Without a GPU nothing is page-locked.
    tensor = torch.empty(length, dtype=torch.uint8, pin_memory=device.on_gpu)
    if skip := -tensor.data_ptr() % ALIGNED:
        # Longer only if required: torch rounds lengths above a power of two up to the next one.
        tensor = torch.empty(length + ALIGNED, dtype=torch.uint8, pin_memory=device.on_gpu)
        skip = -tensor.data_ptr() % ALIGNED
        tensor = tensor[skip : skip + length]
    tensor.fill_(0)
    return Host(tensor)


def locked(device, length):
    """Anonymous memory locked by the GPU's runtime, as in SGLang's host pools."""
    return lock(device, plain(device, length))


def shared(device, length):
    """A memfd, which a store process maps."""
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


# The kinds by their names in the table. The first is the baseline; the second is the same again,
# and shows the baseline's own variation: pages that happen to be adjacent are fewer pieces for a
# drive.
OWN = {"pageable": plain, "pageable, another": plain, "pin_memory": pinned, "cudaHostRegister": locked, "huge pages, cudaHostRegister": huge}
PROCESS = {"pageable": plain, "pin_memory": pinned, "memfd": shared, "memfd, cudaHostRegister": shared_locked}


def mapping_of(address):
    """The kernel's information about the mapping: its flags, and the amount in huge pages."""
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
    """The number of memory ranges that the kernel reports as registered with this process's rings;
    None if it reports nothing."""
    counts = []
    for fd in os.listdir("/proc/self/fdinfo"):
        with contextlib.suppress(OSError, ValueError):
            if "io_uring" in os.readlink(f"/proc/self/fd/{fd}"):
                with open(f"/proc/self/fdinfo/{fd}") as info:
                    counts += [int(line.split()[1]) for line in info if line.startswith("UserBufs:")]
    return sum(counts) if counts else None
