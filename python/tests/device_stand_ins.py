"""Stand-ins for torch's module of a kind of devices, over the fake driver."""

import ctypes
import gc
import types

import fake_driver


UNUSED_EVENTS = []


class Module:
    """`torch.cuda` as far as the adapters use it. The engine computes on `computing`."""

    def __init__(self, driver):
        self.driver = driver
        self.computing = Stream(driver)

    def current_device(self):
        return 0

    def current_stream(self, index):
        assert index == 0
        return self.computing

    def Stream(self, index):
        assert index == 0
        return Stream(self.driver)

    def Event(self):
        return Event(self)


class Stream:
    def __init__(self, driver):
        self.driver, self.cuda_stream = driver, driver.fake_device_stream()

    def wait_event(self, event):
        # Torch makes the device current on each thread that uses it.
        assert self.driver.fake_device_start(0) == 0
        assert self.driver.cuStreamWaitEvent(ctypes.c_void_p(self.cuda_stream), event.event, 0) == 0


class Event:
    def __init__(self, module):
        self.module, self.driver, self.event = module, module.driver, ctypes.c_void_p()
        assert self.driver.cuEventCreate(ctypes.byref(self.event), 0) == 0

    def record(self, stream=None):
        stream = self.module.computing if stream is None else stream
        assert self.driver.cuEventRecord(self.event, ctypes.c_void_p(stream.cuda_stream)) == 0

    def synchronize(self):
        assert self.driver.fake_device_start(0) == 0
        while self.driver.cuEventQuery(self.event) != 0:
            pass

    def query(self):
        assert self.driver.fake_device_start(0) == 0
        return self.driver.cuEventQuery(self.event) == 0

    def __del__(self):
        # CUDA destroys it once no stream uses it.
        UNUSED_EVENTS.append(self.event)


class Device:
    """A `torch.device`."""

    def __init__(self, kind="cuda", index=0):
        self.type, self.index = kind, index

    def __str__(self):
        return f"{self.type}:{self.index}"


class Driver:
    """The fake driver of one test, with the engine's context and its stream."""

    def __init__(self):
        self.fake = fake_driver.loaded("libcuda.so.1")
        assert self.fake.fake_device_start(0) == 0
        self.module = Module(self.fake)
        self.torch = types.SimpleNamespace(get_device_module=lambda kind: self.module)
        self.device = Device()

    def change(self, script):
        assert self.fake.fake_device_change(script.encode()) == 0, script

    def count(self, what):
        return self.fake.fake_device_count(what.encode())

    def fill(self, address, length, byte, stream=None):
        """Let a stream write later, by default that of the computation."""
        stream = self.module.computing if stream is None else stream
        assert self.fake.fake_device_fill(address, length, byte, stream.cuda_stream) == 0

    def read(self, address, length):
        into = ctypes.create_string_buffer(length)
        self.fake.fake_device_peek(address, into, length)
        return into.raw

    def write(self, address, content):
        self.fake.fake_device_poke(address, bytes(content), len(content))

    def drain(self):
        """Let all streams end."""
        while self.count("work"):
            self.fake.fake_device_step()

    def left(self):
        """What the driver still has once all is done, and the violations of its rules."""
        gc.collect()
        self.drain()
        while UNUSED_EVENTS:
            assert self.fake.cuEventDestroy_v2(UNUSED_EVENTS.pop()) == 0
        return {what: self.count(what) for what in ("events", "work", "locked-bytes", "violations") if self.count(what)}
